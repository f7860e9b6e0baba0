"""Every algorithm, one box of equations per file.

| file              | added to ℓ_k in line 1             | t       | line 2         | contribution | line 3         |
|-------------------|------------------------------------|---------|----------------|--------------|----------------|
| `fedavg`          | nothing (mean loss)                | none    | none           | w_k, N_k     | average        |
| `fedprox`         | ½α‖w−w_g‖² (mean loss)             | none    | none           | w_k, N_k     | average        |
| `fedadmm`         | vᵀw + ½α‖w−w_g‖² (mean loss)       | v       | v + α(w_k−w_g) | w_k + v/α    | mean           |
| `feddyn`          | the same with α_k, + ½λ‖w‖²        | v       | v + α_k(w_k−w_g)| w_k         | mean + history |
| `scaffold`        | (c − c_k)ᵀw (mean loss)            | c_k     | ∇ℓ̄_k(w_g)      | w_k, c_k, N_k| average, Σ c_k |
| `fednova`         | ½α‖w−w_g‖² (mean loss)             | none    | none           | d_k, a_k, N_k| (Σ pa) Σ pd    |
| `fedopt`          | nothing (mean loss)                | none    | none           | w_k, N_k     | Adam, Yogi, …  |
| `bcm`             | ½δ‖w‖²                             | (v, V)  | p_k / p_0      | t            | p_0 Π t        |
| `pvi`             | E_q[log t] + KL(q‖q_g)             | (v, V)  | t + ρ(q_k−q_g) | t            | p_0 + Σ t      |
| `fedlap`          | δvᵀw + ½δ‖w−w_g‖²                  | v       | v + ρ(w_k−w_g) | v            | Σ v            |
| `fedlap_cov`      | vᵀw − ½wᵀVw + ½‖w−w_g‖²_{S_g}      | (v, V)  | t + ρ(q_k−q_g) | t            | S_g⁻¹ Σ v      |
| `fedlap_func`     | FedLap − Σ τℓ(ŷ,w) + ΣΣ τℓ(ŷ_g,w)  | (v, ŷ)  | FedLap, ŷ←f(w_k)| (v, ŷ)      | argmin         |
| `fedlap_cov_func` | FedLap-Cov and the same two sums   | (v,V,ŷ) | both of these  | (v, V, ŷ)    | argmin         |
| `bayes_admm`      | E_q[log t] + ρ KL(q‖q_g)           | (v, V)  | t + γρ(q_k−q_g)| t + βq_k     | α(p_0 + Σ ·)   |
| `fedep`           | FedLap-Cov's; t may be shared      | (v, V)  | t + ρ(q_k−q_g) | t            | to p_0 + Σ t, η|
| `fedlap_kron`     | FedLap-Cov in a basis, x = Uᵀw     | (v, V)  | t + ρ(q_k−q_g) | t, moments   | U S_g⁻¹ Σ v    |

To add one: write its file and add its line to `ALGORITHMS`. The command line, the conformance tests and the
documentation find it there.
"""

import dataclasses

from fedlap.algorithms.base import Algorithm
from fedlap.algorithms.bayes_admm import BayesADMM
from fedlap.algorithms.bcm import BCM
from fedlap.algorithms.fedadmm import FedADMM
from fedlap.algorithms.fedavg import FedAvg
from fedlap.algorithms.feddyn import FedDyn
from fedlap.algorithms.fedep import FedEP
from fedlap.algorithms.fedlap import FedLap
from fedlap.algorithms.fedlap_cov import FedLapCov
from fedlap.algorithms.fedlap_cov_func import FedLapCovFunc
from fedlap.algorithms.fedlap_func import FedLapFunc
from fedlap.algorithms.fedlap_kron import FedLapKron
from fedlap.algorithms.fednova import FedNova
from fedlap.algorithms.fedopt import FedOpt
from fedlap.algorithms.fedprox import FedProx
from fedlap.algorithms.pvi import PVI
from fedlap.algorithms.scaffold import SCAFFOLD
from fedlap.registry import Registry

_OWN = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedadmm": FedADMM,
    "feddyn": FedDyn,
    "scaffold": SCAFFOLD,
    "fednova": FedNova,
    "fedopt": FedOpt,
    "bcm": BCM,
    "pvi": PVI,
    "fedlap": FedLap,
    "fedlap_cov": FedLapCov,
    "fedlap_func": FedLapFunc,
    "fedlap_cov_func": FedLapCovFunc,
    "bayes_admm": BayesADMM,
    "fedep": FedEP,
    "fedlap_kron": FedLapKron,
}

ALGORITHMS = Registry(
    "algorithms",
    _OWN,
    "a subclass of fedlap.Algorithm with @fedlap.algorithm above it",
    lambda thing: isinstance(thing, type) and issubclass(thing, Algorithm) and dataclasses.is_dataclass(thing),
)
