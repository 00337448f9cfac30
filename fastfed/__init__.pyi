"""Types of what `import fastfed` offers, which loads when first used; see `__init__.py`."""

from fastfed import kernels as kernels
from fastfed import keyed as keyed
from fastfed import privacy as privacy
from fastfed._random import SeededNoise as SeededNoise
from fastfed._random import SystemNoise as SystemNoise
from fastfed._validate import InputError as InputError
from fastfed.advice import advise as advise
from fastfed.bandits.linucb import LinUCB as LinUCB
from fastfed.environments import Classification as Classification
from fastfed.environments import FixedSet as FixedSet
from fastfed.environments import Gap as Gap
from fastfed.environments import GradientLosses as GradientLosses
from fastfed.environments import HardInstance as HardInstance
from fastfed.environments import Letor as Letor
from fastfed.environments import LossFacts as LossFacts
from fastfed.environments import LowerBoundLosses as LowerBoundLosses
from fastfed.environments import NearRealizableLosses as NearRealizableLosses
from fastfed.environments import NoDiversity as NoDiversity
from fastfed.environments import ObliviousLosses as ObliviousLosses
from fastfed.environments import Python as Python
from fastfed.environments import RealizableLosses as RealizableLosses
from fastfed.environments import Replay as Replay
from fastfed.environments import Sphere as Sphere
from fastfed.environments import StochasticLosses as StochasticLosses
from fastfed.environments import environment_signature as environment_signature
from fastfed.environments import gradient_signature as gradient_signature
from fastfed.environments import losses_signature as losses_signature
from fastfed.protocols.messages import Broadcast as Broadcast
from fastfed.protocols.messages import Report as Report
from fastfed.protocols.phases import LocalEstimate as LocalEstimate
from fastfed.protocols.phases import Model as Model
from fastfed.protocols.score import Score as Score
from fastfed.protocols.score import score_signature as score_signature
from fastfed.protocols.shuffler import Shuffler as Shuffler
from fastfed.report import notebook as _notebook  # noqa: F401
from fastfed.simulation.experiment import load_experiment as load_experiment
from fastfed.simulation.systems import make_system as make_system

__version__: str
__all__: list[str]
