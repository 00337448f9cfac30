"""Types of what `import fastfed` offers, which loads when first used; see `__init__.py`."""

from fastfed import counter_rng as counter_rng
from fastfed import kernels as kernels
from fastfed import privacy as privacy
from fastfed._random import SeededNoise as SeededNoise
from fastfed._random import SystemNoise as SystemNoise
from fastfed._validate import InputError as InputError
from fastfed.advice.advise import advise as advise
from fastfed.bandits.linucb import LinUCB as LinUCB
from fastfed.bandits.silo import Client as Client
from fastfed.bandits.silo import Peer as Peer
from fastfed.bandits.silo import Silo as Silo
from fastfed.environments import Classification as Classification
from fastfed.environments import FixedSet as FixedSet
from fastfed.environments import Gap as Gap
from fastfed.environments import GradientLosses as GradientLosses
from fastfed.environments import HardInstance as HardInstance
from fastfed.environments import Letor as Letor
from fastfed.environments import LossSpec as LossSpec
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
from fastfed.experts.parties import ExpertClient as ExpertClient
from fastfed.experts.parties import ExpertServer as ExpertServer
from fastfed.off_policy import cross_fitted_ridge as cross_fitted_ridge
from fastfed.off_policy import doubly_robust as doubly_robust
from fastfed.off_policy import inverse_propensity as inverse_propensity
from fastfed.off_policy import self_normalised as self_normalised
from fastfed.privacy.audit.function import audit as audit
from fastfed.privacy.releases.tree_release import TreeRelease as TreeRelease
from fastfed.protocols.messages import Broadcast as Broadcast
from fastfed.protocols.messages import Report as Report
from fastfed.protocols.network import Graph as Graph
from fastfed.protocols.phases import LocalEstimate as LocalEstimate
from fastfed.protocols.phases import Model as Model
from fastfed.protocols.randomizer import User as User
from fastfed.protocols.score import Score as Score
from fastfed.protocols.score import score_signature as score_signature
from fastfed.protocols.server import Averager as Averager
from fastfed.protocols.server import Server as Server
from fastfed.protocols.shuffler import Shuffler as Shuffler
from fastfed.protocols.vector_sum import VectorSum as VectorSum
from fastfed.report import notebook as _notebook  # noqa: F401
from fastfed.simulation.experiment import load_experiment as load_experiment
from fastfed.simulation.run import load as load
from fastfed.simulation.run import run as run
from fastfed.simulation.run import simulate as simulate
from fastfed.simulation.systems import make_system as make_system

__version__: str
__all__: list[str]
