"""The paper's rows as sweeps: the appendix's grids and the printed numbers, typed from the paper."""

import pytest

from fedlap.data import LOADERS
from reproduction.rows import ALGORITHMS, Paper

PAPER = Paper.find()


def test_every_row_is_a_sweep_of_known_algorithms():
    named = {name for number in "12345" for name in PAPER.published[f"table{number}"]}
    assert named <= set(PAPER.names)
    for name in PAPER.names:
        sweep = PAPER.row(name).sweep
        assert set(sweep.algorithms) <= set(ALGORITHMS)
        assert sweep.final_seeds == ((62,) if name == "cifar10-ten-rounds" else (62, 63, 64))
        assert sweep.table["federation"]["dataset"] in LOADERS


# The appendix, typed from the paper: batch, rounds, and the values of every axis. Of two-point and standard rows only
# what the rows that they vary do not have.
TENTHS = [1.0, 1e-1, 1e-2, 1e-3, 1e-4]
BY_SHARE, EVENLY = {"rho": "by_share"}, {"rho": "evenly"}
FIRST_BY_SHARE = {"rho": {"first": "by_share", "second": "evenly", "after": 10}}
DECAYS = [1e-4, 1e-5, 1e-6]
APPENDIX = {
    "flamby": {
        "batch": 4,
        "rounds": 20,
        "every": {"epochs": [1, 5, 10], "learning_rate": [1e-3, 1e-2]},
        "feddyn": {"alpha": [10.0, 1.0, 1e-1, 1e-2, 1e-3], "weight_decay": [0.0, 1e-2, 1e-3, 1e-4]},
        "delta": [100.0, 10.0, 1.0, 1e-1, 1e-2],
        "rho": (BY_SHARE, EVENLY, None),
    },
    "uci-heterog": {
        "batch": 4,
        "rounds": 50,
        "rate": 1e-3,
        "every": {"epochs": [5, 10, 20]},
        "feddyn": {"alpha": [1e-3, 1e-4, 1e-5], "weight_decay": DECAYS},
        "delta": [10.0, 1.0, 1e-1],
        "rho": (BY_SHARE, EVENLY, BY_SHARE),
        "tau": 1.0,
        "memory": 1,
        "server": (5000, 1e-3),
    },
    "uci-homog": {
        "batch": 4,
        "rounds": 100,
        "rate": 1e-3,
        "every": {"epochs": [5, 10, 20]},
        "feddyn": {"alpha": [1e-3, 1e-4, 1e-5], "weight_decay": DECAYS},
        "delta": [10.0, 1.0, 1e-1],
        "rho": (BY_SHARE, EVENLY, None),
    },
    "mnist-homog": {
        "batch": 32,
        "rounds": 20,
        "every": {"epochs": [1, 5, 10], "learning_rate": [1e-3, 1e-2]},
        "feddyn": {"alpha": [1e-4, 1e-5, 1e-6], "weight_decay": DECAYS},
        "delta": [1.0, 1e-1, 1e-2],
        "rho": (BY_SHARE, EVENLY, BY_SHARE),
        "tau": [1.0, 1e-1, 1e-2],
        "memory": 1,
        "server": (3000, 5e-4),
    },
    "fmnist-homog": {
        "batch": 32,
        "rounds": 50,
        "rate": 1e-3,
        "every": {"epochs": [1, 5, 10]},
        "feddyn": {"alpha": [1e-2, 1e-3, 1e-4, 1e-5, 1e-6], "weight_decay": DECAYS},
        "delta": TENTHS,
        "rho": (BY_SHARE, EVENLY, BY_SHARE),
        "tau": TENTHS,
        "memory": 1,
        "server": (5000, 1e-3),
    },
    "cifar10": {
        "batch": 64,
        "rounds": 50,
        "rate": 1e-3,
        "every": {"epochs": [5, 10, 20]},
        "fedprox": [1.0, 1e-1, 1e-2, 1e-3],
        "feddyn": {"alpha": [1e-3, 1e-4, 1e-5], "weight_decay": DECAYS},
        "delta": [1.0, 1e-1, 1e-2],
        "rho": (FIRST_BY_SHARE, EVENLY, FIRST_BY_SHARE),
        "tau": [1e-2, 1e-4, 1e-6],
        "memory": 2,
        "server": (500, 5e-4),
    },
}

APPENDIX["mnist-heterog"] = APPENDIX["mnist-homog"] | {"rounds": 50}

APPENDIX["fmnist-heterog"] = APPENDIX["fmnist-homog"]

APPENDIX["fmnist-100-clients"] = APPENDIX["fmnist-homog"]  # of which it says nothing: as with ten clients

BOTH_RHO = ("fmnist-heterog", "fmnist-100-clients")  # 1/K of its section 3.2, beside the appendix's N_k/N


@pytest.mark.parametrize("name", APPENDIX)
def test_a_grid_is_that_of_the_appendix(name):
    said, sweep = APPENDIX[name], PAPER.row(name).sweep
    methods, delta = sweep.table["algorithms"], {"delta": said["delta"]}
    expected = {"fedavg": {}, "fedprox": {"alpha": said.get("fedprox", said["delta"])}, "feddyn": said["feddyn"]}
    expected |= {"fedlap": delta, "fedlap_cov": delta}
    if "memory" in said:
        expected["fedlap_func"] = delta | ({"tau": said["tau"]} if isinstance(said["tau"], list) else {})
    assert list(methods) == list(expected)
    for algorithm, axes in expected.items():
        rest = dict(sweep.axes[algorithm])
        for key, values in (said["every"] | axes).items():
            assert rest.pop(key) == values, (algorithm, key)
        if "server_solver.learning_rate" in rest:  # a tenth of it is ours, and no part of the paper's
            rate = said["server"][1]
            assert rest.pop("server_solver.learning_rate") == [rate, rate / 10]
            assert sweep.part == {"fedlap_func": {"server_solver.learning_rate": [rate]}}
        if name in BOTH_RHO and algorithm in ("fedlap", "fedlap_func"):
            assert rest.pop("rho") == ["by_share", "evenly"]
        assert rest == {}, algorithm
    for algorithm, rho in zip(("fedlap", "fedlap_cov", "fedlap_func"), said["rho"], strict=True):
        if rho and not (name in BOTH_RHO and algorithm == "fedlap"):
            assert methods[algorithm]["rho"] == rho["rho"]
    cell = sweep.final()[-1].spec
    assert (cell.solver["name"], cell.solver["batch"], cell.train.rounds) == ("adam", said["batch"], said["rounds"])
    assert "rate" not in said or cell.solver["learning_rate"] == said["rate"]
    if "memory" in said:
        assert methods["fedlap_func"]["memory"] == said["memory"]
        assert isinstance(said["tau"], list) or cell.algorithms["fedlap_func"]["tau"] == said["tau"]
        rates = [cell.server_solver["learning_rate"], said["server"][1]]
        assert cell.server_solver["steps"] == said["server"][0] and (sweep.part or rates[0] == rates[1])


def test_printed_numbers_are_the_papers():
    """Spot checks, typed from the paper by hand."""
    published = PAPER.published
    assert published["table1"]["flamby"]["20"]["fedlap_cov"] == [80.0, 0.5]
    assert published["table1"]["fmnist-100-clients"]["25"]["feddyn"] == [81.4, 0.2]
    assert published["table2"]["cifar10"]["50"]["fedlap_func"] == [79.6, 1.3]
    assert published["table3"]["fmnist-heterog"]["78"] == {"fedlap_cov": [22, 6]}
    assert published["table4"]["uci-homog"]["100"]["fedavg"] == [88.7, 0.2]
    assert published["table5"]["fmnist-heterog"]["50"]["feddyn"] == [0.77, 0.05]
    cells = [of for number in "12345" for row in published[f"table{number}"].values() for of in row.values()]
    assert sum(map(len, cells)) == 130 + 84 + 45 + 20 + 36
