"""Finding and fetching files, image federations, loading by name."""

import ast
import dataclasses
import gzip
import io
import lzma
import re
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import fedlap.data
from fedlap.data import bring, cifar10, dirichlet, fashion_mnist, fetch, heart, load, mnist, sources, verify
from fedlap.data.catalogue import DATASETS, Content
from fedlap.data.formats import cifar_arrays, idx_array
from fedlap.errors import ConfigError, DataError
from mirror import FILES, Server, catalogue, cifar, idx, left_in, md5, sha256, store

# --- finding and fetching


@pytest.fixture
def server():
    with Server() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No data on the machine, an empty cache, and small stand-ins for the files of the catalogue."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDLAP_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    for name in ("mnist", "fashion_mnist"):
        catalogue(monkeypatch, name, ("http://127.0.0.1:9/",))
    return tmp_path


@pytest.fixture
def online(nowhere, server, monkeypatch):
    """As `nowhere`, with a server that has the files."""
    catalogue(monkeypatch, "mnist", (server.address,))
    server.files = {f"{file}.gz": gzip.compress(content, mtime=0) for file, content in FILES.items()}
    return server


@pytest.mark.parametrize(
    ("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz"), (lzma.compress, ".xz"), (bytes, ".gz")]
)
@pytest.mark.parametrize("inner", ["mnist", "."])
def test_files_are_found_in_a_data_folder_however_packed(nowhere, pack, suffix, inner):
    store(nowhere / "data" / inner, pack, suffix)
    made = mnist(clients=2, data_dir=nowhere / "data")
    assert made.inputs.shape == (40, 28, 28) and made.test_inputs.shape == (20, 28, 28)
    assert [status for _, status in verify("mnist", nowhere / "data")] == ["ok"] * 4


def test_folders_are_searched_in_order(nowhere, monkeypatch):
    def first_folder(data_dir=None):
        return Path(verify("fashion_mnist", data_dir)[0][0]).parent

    system = store(nowhere / "system")
    changed = dataclasses.replace(DATASETS["fashion_mnist"], system_folders=(str(system),))
    monkeypatch.setitem(DATASETS, "fashion_mnist", changed)
    assert first_folder() == system
    cache = store(nowhere / "cache" / "fedlap" / "data" / "fashion-mnist")
    assert first_folder() == cache
    monkeypatch.setenv("FEDLAP_DATA", str(nowhere / "environment"))
    environment = store(nowhere / "environment" / "fashion-mnist")
    assert first_folder() == environment
    passed = store(nowhere / "passed" / "fashion-mnist")
    assert first_folder(nowhere / "passed") == passed
    assert first_folder(nowhere / "system") == system
    assert fashion_mnist(clients=2).inputs.shape == (40, 28, 28)


def test_a_debian_copy_is_looked_for():
    assert DATASETS["fashion_mnist"].system_folders == ("/usr/share/datasets/fashion-mnist",)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "expected 31376 bytes of sha256 .* found 31375 of"),
        (lambda content: content[:-1] + b"\xff", "expected 31376 bytes of sha256 .* found 31376 of"),
        (lambda content: gzip.compress(content)[:-20], "damaged or truncated compressed data"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_reported_by_verify(nowhere, damage, message):
    path = store(nowhere / "mnist") / "train-images-idx3-ubyte"
    path.write_bytes(damage(FILES["train-images-idx3-ubyte"]))
    with pytest.raises(DataError, match=f"{path}: .*{message}.*delete the file"):
        mnist(data_dir=nowhere)
    statuses = dict(verify("mnist", nowhere))
    assert re.match(rf"damaged.*{message}|{message}", statuses.pop(str(path)))
    assert list(statuses.values()) == ["ok"] * 3


def test_images_and_labels_must_be_equally_many(nowhere, monkeypatch):
    monkeypatch.setitem(FILES, "t10k-labels-idx1-ubyte", idx(np.zeros(19)))
    catalogue(monkeypatch, "mnist", ())
    store(nowhere / "mnist")
    with pytest.raises(DataError, match="20 images in t10k-images-idx3-ubyte but 19 labels in t10k-labels"):
        mnist(data_dir=nowhere)


def test_without_files_and_network_one_error_says_where_it_looked_and_what_to_do(nowhere, monkeypatch):
    monkeypatch.setenv("FEDLAP_DATA", str(nowhere / "environment"))
    (nowhere / "passed").mkdir()
    with pytest.raises(DataError) as caught:
        mnist(data_dir=nowhere / "passed")
    message = str(caught.value)
    for needed in (
        "passed/mnist",
        "environment/mnist",
        "cache/fedlap/data/mnist",
        "train-images-idx3-ubyte.gz",
    ):
        assert needed in message
    for needed in ("http://127.0.0.1:9/", "refused", "--data-dir", "FEDLAP_DATA", "fedlap data fetch mnist"):
        assert needed in message
    assert left_in(nowhere) == []


def test_a_data_folder_that_does_not_exist_is_an_error_not_a_download(online, nowhere):
    with pytest.raises(DataError, match=r"data folder .*nothing: no such folder"):
        mnist(data_dir=nowhere / "nothing")
    with pytest.raises(DataError, match=r"data folder .*nothing: no such folder"):
        verify("mnist", nowhere / "nothing")
    assert online.requests == []


def test_a_wrong_argument_is_refused_before_anything_is_downloaded(online):
    for arguments in (
        {"preset": "raw"},
        {"clients": 0},
        {"fraction": 2},
        {"seed": -1},
        {"partition": 3},
    ):
        with pytest.raises(ConfigError, match=next(iter(arguments))):
            mnist(**arguments)
    assert online.requests == []


def test_missing_files_are_downloaded_into_the_cache_once(online, nowhere):
    made = mnist(clients=4)
    assert made.inputs.shape == (40, 28, 28)
    assert left_in(nowhere) == sorted(f"{file}.gz" for file in FILES)
    assert len(online.requests) == 4
    assert mnist(clients=4).fingerprint() == made.fingerprint()
    assert len(online.requests) == 4


def test_fetch_brings_files_to_the_folder_asked_for_and_tells_progress(online, nowhere):
    calls = []
    folder = fetch("mnist", nowhere / "mine", progress=lambda *call: calls.append(call))
    assert folder == nowhere / "mine" / "mnist"
    assert left_in(folder) == left_in(nowhere) == sorted(f"{file}.gz" for file in FILES)
    for file, content in online.files.items():
        mine = [done for name, done, total in calls if name == file and total == len(content)]
        assert mine == sorted(mine) and mine[-1] == len(content)
    requests = len(online.requests)
    assert fetch("mnist", nowhere / "mine") == folder
    assert len(online.requests) == requests


def test_fetch_uses_a_copy_that_is_there(online, nowhere, monkeypatch):
    monkeypatch.setenv("FEDLAP_DATA", str(nowhere / "environment"))
    folder = store(nowhere / "environment" / "mnist")
    assert fetch("mnist") == folder
    assert online.requests == []


def test_fetch_replaces_a_damaged_file_in_its_own_folder(online, nowhere):
    folder = fetch("mnist")
    path = folder / "train-labels-idx1-ubyte.gz"
    path.write_bytes(b"damaged")
    assert fetch("mnist") == folder
    assert path.read_bytes() == online.files[path.name]
    assert [status for _, status in verify("mnist")] == ["ok"] * 4


def test_fetch_says_so_when_a_damaged_file_elsewhere_is_in_the_way(online, nowhere, monkeypatch):
    monkeypatch.setenv("FEDLAP_DATA", str(nowhere / "environment"))
    path = store(nowhere / "environment" / "mnist") / "train-labels-idx1-ubyte"
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match=f"{path}: damaged"):
        fetch("mnist")


def test_a_transfer_that_breaks_off_is_continued(online, nowhere):
    online.behaviour = "breaks off"
    with pytest.raises(DataError, match=r"received \d+ of \d+ bytes; run it again to continue"):
        fetch("mnist")
    name = "train-images-idx3-ubyte.gz"
    assert left_in(nowhere) == [f"{name}.part"]
    half = len(online.files[name]) // 2
    online.behaviour, online.requests[:] = "good", []
    fetch("mnist")
    assert online.requests == [f"bytes={half}-", None, None, None]
    assert [status for _, status in verify("mnist")] == ["ok"] * 4
    assert left_in(nowhere) == sorted(f"{file}.gz" for file in FILES)


def test_a_server_without_ranges_is_asked_again_from_the_start(online, nowhere):
    online.behaviour = "breaks off"
    with pytest.raises(DataError, match="run it again"):
        fetch("mnist")
    online.behaviour = "no ranges"
    fetch("mnist")
    assert [status for _, status in verify("mnist")] == ["ok"] * 4


def test_a_transfer_that_ended_just_before_its_name_was_given_needs_no_request(online, nowhere):
    cache = nowhere / "cache" / "fedlap" / "data" / "mnist"
    cache.mkdir(parents=True)
    for file, content in online.files.items():
        (cache / f"{file}.part").write_bytes(content)
    assert fetch("mnist") == cache
    assert online.requests == [] and left_in(cache) == sorted(online.files)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (
            "wrong bytes",
            r"expected \d+ bytes of md5 [0-9a-f]{32}, received \d+ of md5 [0-9a-f]{32}; discarded",
        ),
        ("too much", r"it has \d+ bytes; expected \d+"),
        ("short page", r"it has 13 bytes; expected \d+"),
        ("error", "HTTP Error 503"),
    ],
)
def test_wrong_bytes_and_server_errors_leave_nothing_behind(online, nowhere, behaviour, message):
    online.behaviour = behaviour
    with pytest.raises(DataError, match=message):
        fetch("mnist")
    assert left_in(nowhere) == []


def test_a_server_that_never_ends_cannot_fill_the_disk(online, nowhere):
    online.behaviour = "endless"
    with pytest.raises(DataError, match="discarded"):
        fetch("mnist")
    assert online.hung_up.wait(timeout=10)
    assert left_in(nowhere) == []


def test_a_wrong_beginning_is_discarded_and_fetched_anew(online, nowhere):
    cache = nowhere / "cache" / "fedlap" / "data" / "mnist"
    cache.mkdir(parents=True)
    (cache / "train-images-idx3-ubyte.gz.part").write_bytes(b"wrong")
    fetch("mnist")
    assert online.requests[:2] == ["bytes=5-", None]
    assert [status for _, status in verify("mnist")] == ["ok"] * 4


def test_the_second_address_is_tried_when_the_first_fails(online, monkeypatch):
    catalogue(monkeypatch, "mnist", ("http://127.0.0.1:9/", online.address))
    fetch("mnist")
    assert len(online.requests) == 4


@pytest.mark.parametrize("behaviour", ["short page", "short page of no length"])
def test_an_error_page_at_the_first_address_does_not_spoil_the_second(online, nowhere, monkeypatch, behaviour):
    """As a network sends that wants its user to log in."""
    with Server() as portal:
        threading.Thread(target=portal.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        portal.files, portal.behaviour = online.files, behaviour
        catalogue(monkeypatch, "mnist", (portal.address, online.address))
        fetch("mnist")
        portal.shutdown()
    assert len(portal.requests) == 4
    assert [status for _, status in verify("mnist")] == ["ok"] * 4


def test_two_fetches_at_once_bring_the_files_once(online, nowhere):
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(fetch, ["mnist", "mnist"]))
    assert folders[0] == folders[1] and len(online.requests) == 4
    assert left_in(folders[0]) == sorted(online.files)


def test_what_a_run_needs_is_brought_before_it_begins(online, nowhere):
    seen = []
    bring("mnist", progress=lambda file, done, total: seen.append(file))
    assert sorted(set(seen)) == sorted(online.files)
    online.requests[:] = []
    assert set(sources.read("mnist")) == set(FILES) and online.requests == []


def test_a_folder_that_may_not_be_looked_into_is_named(nowhere, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(DataError, match=r"mnist: cannot be read \(Permission denied\)"):
        verify("mnist", nowhere)


# --- image federations


def test_presets_of_the_grey_images(nowhere):
    store(nowhere / "mnist")
    store(nowhere / "fashion-mnist")
    pixels = idx_array(FILES["train-images-idx3-ubyte"], "", 3)
    for loader, preset, expected in (
        (mnist, "paper", pixels / 255),
        (mnist, "standard", pixels / 255),
        (fashion_mnist, "paper", pixels),
        (fashion_mnist, "standard", pixels / 255),
    ):
        made = loader(clients=2, preset=preset, data_dir=nowhere)
        assert made.inputs.dtype == made.test_inputs.dtype == np.float32
        np.testing.assert_allclose(made.inputs, expected, rtol=1e-6)
        np.testing.assert_array_equal(made.labels, idx_array(FILES["train-labels-idx1-ubyte"], "", 1))


def test_a_fraction_is_balanced_and_depends_on_the_seed(nowhere):
    store(nowhere)
    made = [mnist(clients=2, fraction=0.5, seed=seed, data_dir=nowhere) for seed in (0, 0, 1)]
    assert np.bincount(made[0].labels).tolist() == [2] * 10
    assert made[0].test_inputs.shape == (20, 28, 28)
    assert made[0].fingerprint() == made[1].fingerprint() != made[2].fingerprint()
    assert (made[0].inputs != made[2].inputs).any()
    whole = mnist(clients=2, data_dir=nowhere)
    chosen = {image.tobytes(): label for image, label in zip(whole.inputs, whole.labels, strict=True)}
    assert all(chosen[image.tobytes()] == label for image, label in zip(made[0].inputs, made[0].labels, strict=True))


def test_the_partition_divides_the_training_set(nowhere):
    store(nowhere)
    made = mnist(clients=3, partition=dirichlet(sizes=1.0, classes=0.5), seed=5, data_dir=nowhere)
    assert made.clients == ("client-0", "client-1", "client-2")
    assert made.sizes.sum() == 40 and np.ptp(made.sizes) > 1
    assert np.ptp(mnist(clients=3, data_dir=nowhere).sizes) == 1


@pytest.fixture
def tiny_cifar(nowhere, monkeypatch):
    rng = np.random.default_rng(3)
    files = {}
    for content in DATASETS["cifar10"].contents:
        images = rng.integers(0, 256, (10, 32, 32, 3)) // np.array([1, 2, 4])
        files[content.name] = cifar(images, rng.permutation(10))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in {"readme.html": b"hello", **files}.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    download = dataclasses.replace(
        DATASETS["cifar10"].downloads[0], size=len(packed.getvalue()), md5=md5(packed.getvalue()), urls=()
    )
    contents = tuple(Content(name, len(content), sha256(content)) for name, content in files.items())
    changed = dataclasses.replace(DATASETS["cifar10"], contents=contents, downloads=(download,))
    monkeypatch.setitem(DATASETS, "cifar10", changed)
    return nowhere, files, packed.getvalue()


def test_cifar_is_read_from_loose_packed_or_archived_files_alike(tiny_cifar):
    folder, files, packed = tiny_cifar
    loose, xz, archived, flat = (folder / name for name in ("loose", "xz", "archived", "flat"))
    (loose / "cifar10" / "cifar-10-batches-bin").mkdir(parents=True)
    (xz / "cifar10").mkdir(parents=True)
    archived.mkdir()
    flat.mkdir()
    for name, content in files.items():
        (loose / "cifar10" / "cifar-10-batches-bin" / name).write_bytes(content)
        (xz / "cifar10" / f"{name}.xz").write_bytes(lzma.compress(content))
        (flat / name).write_bytes(content)
    (archived / "cifar-10-binary.tar.gz").write_bytes(packed)
    prints = {cifar10(clients=2, data_dir=where).fingerprint() for where in (loose, xz, archived, flat)}
    assert len(prints) == 1
    (archived / "cifar-10-binary.tar.gz").write_bytes(packed[:-5000])
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz: damaged or truncated archive"):
        cifar10(data_dir=archived)


def test_presets_of_the_colour_images(tiny_cifar):
    folder, files, packed = tiny_cifar
    (folder / "cifar-10-binary.tar.gz").write_bytes(packed)
    paper = cifar10(clients=2, preset="paper", data_dir=folder)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    pixels = np.concatenate([cifar_arrays(files[name], name)[0] for name in names])
    np.testing.assert_allclose(paper.inputs, pixels / 255, rtol=1e-6)
    np.testing.assert_allclose(paper.test_inputs, cifar_arrays(files["test_batch.bin"], "")[0] / 255, rtol=1e-6)
    standard = cifar10(clients=2, data_dir=folder)
    inputs = standard.inputs.astype(float)
    np.testing.assert_allclose(inputs.mean(axis=(0, 1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(inputs.std(axis=(0, 1, 2)), 1, atol=1e-6)
    # One scale for training set, test set and every fraction.
    mean, deviation = (pixels / 255).mean(axis=(0, 1, 2)), (pixels / 255).std(axis=(0, 1, 2))
    np.testing.assert_allclose(standard.test_inputs, (paper.test_inputs - mean) / deviation, atol=1e-5)
    part = cifar10(clients=2, fraction=0.2, data_dir=folder)
    known = {image.tobytes() for image in standard.inputs}
    assert len(part.inputs) == 10 and all(image.tobytes() in known for image in part.inputs)


# --- loading by name


def test_load_is_the_function_of_that_name():
    assert load("heart", preset="paper").fingerprint() == heart(preset="paper").fingerprint()
    assert load("credit", split="two_clients", seed=4).sizes.tolist() == [260, 260]
    assert set(fedlap.data.LOADERS) - {"files"} == set(DATASETS)


def test_load_takes_partitions_by_name_or_as_mappings(nowhere):
    store(nowhere)
    expected = mnist(clients=3, partition=dirichlet(classes=0.3), data_dir=nowhere).fingerprint()
    for partition in ({"name": "dirichlet", "classes": 0.3}, dirichlet(classes=0.3)):
        assert load("mnist", clients=3, partition=partition, data_dir=nowhere).fingerprint() == expected
    even = load("mnist", clients=4, partition="homogeneous", data_dir=nowhere)
    assert even.fingerprint() == mnist(clients=4, data_dir=nowhere).fingerprint()
    counted = load("mnist", clients=1, partition={"name": "label_rate", "counts": [[1] * 10]}, data_dir=nowhere)
    assert counted.sizes.tolist() == [10]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "hart"}, r"unknown data set 'hart'; did you mean 'heart'\? \(choices: cifar10, credit,"),
        ({"name": "heart", "sed": 1}, r"unknown option of heart 'sed' \(choices: preset\)"),
        ({"name": "mnist", "client": 5}, "unknown option of mnist 'client'; did you mean 'clients'"),
        (
            {"name": "mnist", "partition": "dirichlett"},
            "unknown partition 'dirichlett'; did you mean 'dirichlet'",
        ),
        (
            {"name": "mnist", "partition": {"sizes": 1}},
            "unknown partition None .*choices: dirichlet, homogeneous",
        ),
        (
            {"name": "mnist", "partition": {"name": "dirichlet", "size": 1}},
            "unknown option of dirichlet 'size'; did you mean 'sizes'",
        ),
        ({"name": "mnist", "partition": "label_rate"}, "label_rate needs the option 'counts'"),
        ({"name": "mnist", "partition": 7}, "partition is 7; expected a partition such as homogeneous"),
    ],
)
def test_load_refuses_unknown_names_with_the_nearest_choice(arguments, message):
    with pytest.raises(ConfigError, match=message):
        load(**arguments)


# --- the package


def test_the_data_layer_imports_numpy_narwhals_and_the_standard_library_only():
    for path in Path(fedlap.data.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module]
            else:
                continue
            for module in modules:
                top, _, inner = module.partition(".")
                if top == "fedlap":
                    below = ("data", "errors", "checks", "domains", "files", "registry", "sheets")
                    assert inner.partition(".")[0] in below, f"{path.name} imports {module}"
                    continue
                known = top in ("numpy", "narwhals") or top in sys.stdlib_module_names
                assert known, f"{path.name} imports {module}"
                assert top not in ("pickle", "shelve", "marshal"), f"{path.name} imports {module}"
