"""Joining a plan with a silo's ledger: a new plan, or one that continues another."""

from __future__ import annotations

from pathlib import Path

from fastfed._validate import InputError
from fastfed.deployment import folder as folders
from fastfed.deployment.extend import check_room, prepare
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.plans import DeployedPlan, load


def join(
    folder: str | Path,
    plan_file: str | Path,
    ceiling: tuple[float, float] | None = None,
    dataset: str | None = None,
    ledger: str | Path | None = None,
    extends: str | Path | None = None,
) -> tuple[str, DeployedPlan]:
    """Verify a plan file, countersign it for the party of a folder, and set a silo's ceiling.

    Parameters
    ----------
    folder : str or Path
    plan_file : str or Path
    ceiling : tuple, optional
        (epsilon, delta) of a silo's dataset; by default what its ledger has.
    dataset : str, optional
        The entry of the ledger; by default "records", or that of ``extends``.
    ledger : str or Path, optional
        A ledger that several folders share; by default the folder's own, or that of ``extends``.
    extends : str or Path, optional
        The folder of the plan that this one continues: its secret is taken over.

    Returns
    -------
    tuple
        The party's name, and the plan with its countersignature.

    Raises
    ------
    InputError
        If the plan does not verify, a silo has no ceiling, or a plan that continues another would
        pass it; nothing was written then but the secret of the new folder.
    """
    target, plan = Path(folder), load(plan_file)
    if extends is not None:
        prepare(target, plan, extends)
    if not folders.is_silo(target, plan_file):
        return folders.join(target, plan_file)
    noted = folders.remembered(target if extends is None else extends)
    entry = dataset or noted[0]
    file = Path(ledger) if ledger is not None else noted[1]
    if plan.earlier is not None and extends is None and ledger is None:
        raise InputError(
            f"the plan continues {plan.earlier.digest.hex()[:16]}; name its folder by --extends, "
            "or its ledger by --ledger"
        )
    if ceiling is None and not file.exists():
        raise InputError("a silo needs a ceiling: --epsilon and --delta")
    budget = Ledger(str(file))
    try:
        if ceiling is None and budget.ceiling(entry) is None:
            raise InputError("a silo needs a ceiling: --epsilon and --delta")
        if plan.earlier is not None:
            check_room(budget, entry, plan, ceiling)
        made = folders.join(target, plan_file)
        if ceiling is not None:
            budget.set_ceiling(entry, *ceiling)
        folders.remember(target, entry, file)
    finally:
        budget.close()
    return made
