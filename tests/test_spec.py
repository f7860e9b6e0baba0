"""Settings: every key is checked, and an error names the key and what was expected."""

import pytest

from fedlap.algebra.damping import by_share, evenly, then
from fedlap.errors import ConfigError
from fedlap.experiments import spec

TINY = {
    "federation": {"dataset": "heart"},
    "model": {"name": "logistic"},
    "algorithms": {"fedlap": {"delta": 1.0}, "fedlap_cov": {"delta": 1.0}},
}


def resolve(*overrides, only=(), **sections):
    return spec.resolve("tiny", {**TINY, **sections}, only, overrides)


def test_the_bundled_spec_resolves_and_names_every_algorithm():
    from fedlap.algorithms import ALGORITHMS

    assert set(spec.resolve(*spec.read_table()).algorithms) == set(ALGORITHMS)


def test_a_resolved_spec_resolves_to_itself():
    first = resolve(solver={"name": "adam", "epochs": 2}, train={"rounds": 3, "seeds": [4, 5]})
    table = first.as_dict()
    assert spec.resolve(table.pop("name"), table) == first


def test_defaults_are_written_down():
    made = resolve()
    assert made.algorithms["fedlap"] == {"delta": 1.0, "rho": "by_share"}
    assert made.solver["learning_rate"] == 1e-3
    assert made.federation["preset"] == "standard"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("evenly", evenly),
        ("by_share", by_share),
        (0.25, 0.25),
        ({"first": "by_share", "second": "evenly", "after": 10}, then(by_share, evenly, after=10)),
    ],
)
def test_damping_can_be_written_in_a_file(written, meant):
    made = resolve(algorithms={"fedlap": {"delta": 1.0, "rho": written}})
    assert made.make_algorithm("fedlap").rho == meant


def test_overrides_reach_the_section_that_has_the_key():
    made = resolve("delta=0.5", "epochs=3", "rounds=7", "seeds=[8, 9]", "fedlap.rho=0.5", "preset=paper")
    assert made.algorithms["fedlap"] == {"delta": 0.5, "rho": 0.5}
    assert made.algorithms["fedlap_cov"]["delta"] == 0.5
    assert made.algorithms["fedlap_cov"]["rho"] == "evenly"
    assert (made.solver["epochs"], made.train.rounds, made.train.seeds) == (3, 7, (8, 9))
    assert made.federation["preset"] == "paper"


def test_choosing_algorithms_keeps_their_settings():
    assert set(resolve(only=["fedlap_cov"]).algorithms) == {"fedlap_cov"}
    assert set(resolve(only=["fedavg"]).algorithms) == {"fedavg"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: resolve(trian={}), r"unknown section 'trian'; did you mean 'train'\?"),
        (lambda: resolve(train=3), r"train is 3; expected a table, \[train\]"),
        (lambda: resolve(train={"round": 3}), r"unknown key in \[train\] 'round'; did you mean 'rounds'\?"),
        (lambda: resolve(train={"rounds": 0}), r"train.rounds is 0; expected a whole number above 0"),
        (lambda: resolve(train={"rounds": 2.5}), r"train.rounds is 2.5; expected a whole number above 0"),
        (lambda: resolve(train={"seeds": []}), r"train.seeds is \[\]; expected a list of whole numbers"),
        (lambda: resolve(train={"seeds": [1, 1]}), r"each seed may stand there once"),
        (lambda: resolve(train={"target_accuracy": 80}), r"target_accuracy is 80; expected a fraction"),
        (lambda: resolve(model={"name": "logistik"}), r"unknown model.name 'logistik'; did you mean 'logistic'\?"),
        (lambda: resolve(model={}), r"model.name is missing"),
        (lambda: resolve(model={"name": "mlp", "activation": "swish"}), r"swish"),
        (lambda: resolve(federation={"dataset": "hart"}), r"unknown federation.dataset 'hart'; did you mean 'heart'\?"),
        (lambda: resolve(federation={"dataset": "heart", "presets": 1}), r"unknown key in \[federation\] 'presets'"),
        (lambda: resolve(solver={"name": "adam", "lr": 1}), r"unknown key in \[solver\] 'lr'"),
        (lambda: resolve(solver={"name": "adam", "batch": 0}), r"batch is 0; expected a whole number above 0"),
        (
            lambda: resolve(solver={"name": "adam", "learning_rate": -1}),
            r"learning_rate is -1.0; expected a number above 0",
        ),
        (lambda: resolve(algorithms={"fedlapp": {}}), r"unknown algorithm 'fedlapp'; did you mean 'fedlap'\?"),
        (lambda: resolve(algorithms={"fedlap": {}}), r"algorithms.fedlap.delta is missing"),
        (lambda: resolve(algorithms={"fedlap": {"delta": 0}}), r"FedLap: delta is 0.0; expected a number above 0"),
        (
            lambda: resolve(algorithms={"fedlap": {"delta": "big"}}),
            r"FedLap: delta is 'big'; expected a number above 0",
        ),
        (lambda: resolve(algorithms={"fedlap": {"delta": 1, "rho": 1.5}}), r"FedLap: rho is 1.5; expected a number in"),
        (lambda: resolve(algorithms={"fedlap": {"delta": 1, "rho": "evently"}}), r"did you mean 'evenly'\?"),
        (
            lambda: resolve(algorithms={"fedlap_cov": {"delta": 1, "covariance": "block"}}),
            r"covariance is 'block'; expected",
        ),
        (lambda: resolve("delta"), r"--set delta: expected key=value"),
        (lambda: resolve("detla=1"), r"unknown key 'detla'; did you mean 'delta'\?"),
        (lambda: resolve("steps=5", solver={"name": "newton"}), r'"steps" may mean solver.steps, server_solver.steps'),
        (lambda: resolve("fedavg.delta=1"), r"unknown key 'fedavg.delta'"),
    ],
)
def test_a_wrong_setting_is_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_choosing_names_in_the_file_and_on_the_command_line_are_checked_alike():
    with pytest.raises(ConfigError, match=r"unknown algorithm 'fedlapp'"):
        resolve(only=["fedlapp"])


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.toml: cannot be read"):
        spec.read_table(tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"broken.toml: not a TOML file .*line 1"):
        spec.read_table(broken)
    with pytest.raises(ConfigError, match=r"\[federation\] is missing"):
        spec.resolve("empty", {})
