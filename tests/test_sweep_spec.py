"""A sweep's file: its cells, what makes two of them differ, and what is refused."""

import json
from dataclasses import replace

import pytest

from fedlap.errors import ConfigError
from fedlap.experiments import sweep as cells
from sweeping import TABLE, make, run


def test_a_grid_is_the_product_of_its_axes():
    sweep = make()
    assert sweep.settings("fedavg") == [{"epochs": 1}, {"epochs": 2}]
    assert sweep.settings("fedlap")[0] == {"epochs": 1, "delta": 0.1, "learning_rate": 1e-2}
    assert len(sweep.search()) == len(sweep.final()) == 2 * (2 + 4)
    cell = sweep.search()[-1]
    assert cell.spec.algorithms == {"fedlap": {"delta": 1.0, "rho": "evenly"}}
    assert (cell.spec.solver["epochs"], cell.spec.solver["learning_rate"], cell.spec.train.seeds) == (2, 1e-2, (2,))


def test_an_axis_may_name_its_section(tmp_path):
    """The server's learning rate beside the clients': the cell of the default is the old one, no batch mixes two."""
    plain = {**TABLE, "algorithms": {"fedlap_func": {"delta": 1.0}}, "train": {"rounds": 1, "seeds": [1]}}
    axes = {"learning_rate": [1e-2], "server_solver.learning_rate": [3e-3, 1e-5]}
    old = cells.make("tiny", {**plain, "sweep": {"fedlap_func": {"learning_rate": [1e-2]}}})
    new = cells.make("tiny", {**plain, "sweep": {"fedlap_func": axes, "validation": 0}})
    same, other = new.final()
    assert same.digest == old.final()[0].digest and same.spec.solver["learning_rate"] == 1e-2
    assert other.spec.server_solver == {**same.spec.server_solver, "learning_rate": 1e-5}
    assert new.narrow(["server_solver.learning_rate=1e-5"]).final()[0].digest == other.digest
    _, together = run(new, tmp_path / "x.jsonl")
    _, alone = run(new.narrow(["server_solver.learning_rate=1e-5"]), tmp_path / "y.jsonl")
    curves = {result.cell: result.curves["test"].nll for result in together}  # either may be the first to finish
    assert curves[other.digest] == alone[0].curves["test"].nll != curves[same.digest]
    with pytest.raises(ConfigError, match=r"server_solver\.learning_rate is swept; choose .* --only server_solver"):
        cells.make("tiny", {**plain, "sweep": {"fedlap_func": axes}}, overrides=["server_solver.learning_rate=1"])


def test_a_part_of_a_grid_has_the_same_cells():
    part = make().narrow(["epochs=2", "delta=0.1"])
    assert part.settings("fedavg") == [{"epochs": 2}]
    assert part.settings("fedlap") == [{"epochs": 2, "delta": 0.1, "learning_rate": 1e-2}]
    assert {cell.digest for cell in part.search()} < {cell.digest for cell in make().search()}
    with pytest.raises(ConfigError, match="epochs has no value '3'; it has 1, 2"):
        make().narrow(["epochs=1,3"])
    mixed = make(fedavg={"learning_rate": [1e-3]})
    with pytest.raises(ConfigError, match=r"leaves nothing of fedavg's learning_rate, which has 0\.001"):
        mixed.narrow(["learning_rate=1e-2"])
    kept = make(every={"keep": [True, False]}).narrow(["keep=true"])
    assert kept.settings("fedavg") == [{"keep": True}]
    with pytest.raises(ConfigError, match=r"axis.*epohcs.*epochs"):
        make().narrow(["epohcs=3"])


def test_a_digest_changes_with_whatever_changes_a_result():
    first = make().search()[0]
    table = {**TABLE, "model": {"name": "logistic", "bias": True}}
    others = [replace(first, held_out=0.0), make().search()[1], make().search()[2], make(table).search()[0]]
    assert len({first.digest, *(cell.digest for cell in others)}) == 5
    assert cells.make("another name", TABLE).search()[0].digest == first.digest
    whole, real = (make(fedlap={"delta": [value]}).final()[-1] for value in (1, 1.0))
    assert whole.digest == real.digest and make(fedlap={"delta": [2]}).final()[-1].digest != real.digest


def test_an_accuracy_to_look_out_for_makes_no_other_run():
    """Nor does it change the digests of results that have no such accuracy."""
    aimed = {**TABLE, "train": {**TABLE["train"], "target_accuracy": 0.8}}
    assert [cell.digest for cell in make(aimed).search()] == [cell.digest for cell in make().search()]
    more = {**TABLE, "train": {**TABLE["train"], "rounds": 4}}
    assert not {cell.digest for cell in make(more).search()} & {cell.digest for cell in make().search()}


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"validation": 1.5}, "sweep.validation is 1.5"),
        ({"finals": "best"}, "sweep.finals 'best'"),
        ({"finals": "winners", "validation": 0}, "expected rows to choose winners by"),
        ({"fedprox": {"alpha": [1.0]}}, "fedprox"),
        ({"fedlap": {"dleta": [1.0]}}, "dleta.*delta"),
        ({"fedlap": {"server_solver.rate": [1.0]}}, "server_solver.rate.*server_solver.learning_rate"),
        ({"fedlap": {"train.rounds": [1]}}, "train.rounds"),
        ({"fedlap": {"delta": 1.0}}, r"sweep.fedlap.delta is 1.0; expected a list"),
        ({"fedlap": {"delta": []}}, "expected a list"),
        ({"fedlap": 3}, r"sweep.fedlap is 3; expected a section"),
        ({"every": 3}, r"sweep.every is 3; expected a section"),
        ({"search_seeds": 5}, "sweep.search_seeds is 5; expected a list of whole numbers"),
        ({"search_seeds": ["a"]}, "sweep.search_seeds is"),
        ({"watch_train": "yes"}, "sweep.watch_train is 'yes'; expected true or false"),
        ({"precision": "double"}, "sweep.precision 'double'.*float64"),
        ({"search_seeds": [2**70]}, "sweep.search_seeds is .*; expected a list of whole numbers from 0 to 4294967295"),
        ({"fedlap": {"epochs": [1], "solver.epochs": [2]}}, "epochs and solver.epochs are the same axis"),
        ({"part": 3}, r"sweep.part is 3; expected a section"),
        ({"part": {"fedlpa": {"delta": [0.1]}}}, r"algorithm in \[sweep.part\] 'fedlpa'.*fedlap"),
        ({"part": {"fedlap": 3}}, "sweep.part.fedlap is 3; expected a section with lists"),
        ({"part": {"fedlap": {"dleta": [0.1]}}}, r"axis in \[sweep.part.fedlap\] 'dleta'.*delta"),
        (
            {"part": {"fedlap": {"delta": [7.0]}}},
            r"sweep.part.fedlap.delta is \[7.0\]; expected .* some of \[0.1, 1.0\]",
        ),
    ],
)
def test_a_wrong_sweep_is_refused(sweep, message):
    with pytest.raises(ConfigError, match=message):
        make(**sweep)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": {"seeds": 62}}, "train.seeds is 62; expected a list of whole numbers"),
        ({"train": {"seeds": []}}, "train.seeds is"),
        ({"solver": {"name": "adma"}}, "solver.name 'adma'.*adam"),
        ({"solver": {"name": ["adam"]}}, r"solver.name \['adam'\]"),
        ({"federation": {"dataset": ["heart"]}}, r"federation.dataset is \['heart'\]; expected one of"),
        ({"train": {"seeds": [1, 2**32]}}, "train.seeds is .*; expected a list of whole numbers from 0 to 4294967295"),
        ({"algorithms": {"fedavg": 3, "fedlap": {}}}, "algorithms.fedavg is 3; expected a table"),
        ({"algorithms": {}}, r"\[algorithms\] is empty; expected some of fedavg"),
    ],
)
def test_a_wrong_spec_of_a_sweep_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        make({**TABLE, **change})


def test_what_is_swept_cannot_be_set():
    with pytest.raises(ConfigError, match=r"--set solver\.epochs=7: epochs is swept; choose .* with --only"):
        cells.make("tiny", TABLE, overrides=["solver.epochs=7"])
    with pytest.raises(ConfigError, match="learning_rate is swept"):
        cells.make("tiny", TABLE, overrides=["solver.learning_rate=1e-4"])
    assert cells.make("tiny", TABLE, overrides=["rounds=7"]).search()[0].spec.train.rounds == 7
    slower = cells.make("tiny", TABLE, overrides=["server_solver.learning_rate=1e-4"])
    assert slower.search()[0].spec.server_solver["learning_rate"] == 1e-4
    both = {**TABLE, "algorithms": {"fedlap": {}, "fedlap_cov": {"delta": 1.0}}}
    one = cells.make("tiny", both, overrides=["fedlap_cov.delta=3"]).final()[-1]
    assert one.spec.algorithms["fedlap_cov"]["delta"] == 3


def plain(**changes):
    """The file without its [sweep]; one of its algorithms needs a value that was swept."""
    return {**{key: value for key, value in TABLE.items() if key != "sweep"}, **changes}


def test_a_run_is_a_sweep_without_axes():
    """Every algorithm with every seed, as the file has it, on all rows."""
    with pytest.raises(ConfigError, match=r"algorithms\.fedlap\.delta is missing"):
        cells.make("tiny", plain())
    methods = {"fedavg": {}, "fedlap": {"delta": 0.1}}
    sweep = cells.make("tiny", plain(algorithms=methods))
    found = [(cell.algorithm, cell.seed, cell.setting, cell.held_out) for cell in sweep.final()]
    assert found == [(name, seed, {}, 0.0) for name in methods for seed in (1, 2)] and sweep.search() == []
    same = cells.make("tiny", {**plain(algorithms=methods), "sweep": {"fedlap": {"delta": [0.1]}}})
    assert [cell.digest for cell in same.final()] == [cell.digest for cell in sweep.final()]


def test_only_a_grid_is_bound_to_its_own_algorithms():
    """What is swept of another one nobody has said."""
    assert cells.make("tiny", plain(), ["fedprox"], ["alpha=0.5"]).final()[0].spec.algorithms["fedprox"]["alpha"] == 0.5
    with pytest.raises(ConfigError, match="unknown algorithm of this sweep 'fedprox'"):
        cells.make("tiny", TABLE, ["fedprox"])
    with pytest.raises(ConfigError, match=r"sweep is 3; expected a section \[sweep\]"):
        cells.make("tiny", plain(sweep=3))


@pytest.mark.parametrize("table", [TABLE, plain(algorithms={"fedavg": {}, "bcm": {"delta": 1.0}})], ids=["grid", "run"])
def test_what_is_written_down_makes_the_same_sweep_again(table):
    sweep = cells.make("tiny", table, ["fedavg"], ["rounds=7"])
    sweep = sweep.narrow(["epochs=2"]) if sweep.is_grid else sweep
    again = cells.again(json.loads(json.dumps(sweep.as_dict())))
    digests = lambda sweep: [cell.digest for cell in (*sweep.search(), *sweep.final())]
    assert digests(again) == digests(sweep) and again.as_dict() == sweep.as_dict()
    assert again.final()[0].spec.train.rounds == 7
