"""The data sets fedlap knows: which files, with which checksums, from where, under which licence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlap.errors import unknown

BUNDLED = Path(__file__).parent / "bundled"


@dataclass(frozen=True)
class Content:
    """One file as its readers see it, uncompressed: copies compressed differently are the same content."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Download:
    """One file as its publisher offers it, and the contents it brings."""

    file: str
    size: int
    md5: str
    urls: tuple[str, ...]
    contents: tuple[str, ...]


@dataclass(frozen=True)
class Dataset:
    """One data set: what it is, what it consists of, and where copies of it may lie."""

    name: str
    description: str
    licence: str
    source: str
    contents: tuple[Content, ...]
    folder: str = ""  # its folder in a data folder
    downloads: tuple[Download, ...] = ()
    archive_folder: str = ""  # the folder of the contents within an archive, if the download is one
    system_folders: tuple[str, ...] = ()  # where operating systems install it

    @property
    def bundled(self) -> bool:
        """Whether it comes with the package."""
        return not self.downloads

    @property
    def bytes(self) -> int:
        """The size of what is stored: the files in the package, or the download."""
        return sum(item.size for item in self.downloads or self.contents)


def dataset(name: str) -> Dataset:
    """The data set of that name."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def _idx_files(mirrors: tuple[str, ...], *files: tuple[str, int, str, int, str]) -> dict[str, Any]:
    """Contents and downloads of IDX files: name, size and sha256 of the content, size and md5 of the .gz."""
    return {
        "contents": tuple(Content(name, size, sha256) for name, size, sha256, _, _ in files),
        "downloads": tuple(
            Download(f"{name}.gz", size, md5, tuple(f"{mirror}{name}.gz" for mirror in mirrors), (name,))
            for name, _, _, size, md5 in files
        ),
    }


_CIFAR10 = (
    Content("data_batch_1.bin", 30730000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    Content("data_batch_2.bin", 30730000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    Content("data_batch_3.bin", 30730000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    Content("data_batch_4.bin", 30730000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    Content("data_batch_5.bin", 30730000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    Content("test_batch.bin", 30730000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
)

DATASETS: dict[str, Dataset] = {
    "heart": Dataset(
        name="heart",
        description="UCI Heart Disease: 4 hospitals, 740 complete patients, 13 features, 2 classes",
        licence="CC BY 4.0",
        source="A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano (1988), doi:10.24432/C52P4X",
        contents=(
            Content(
                "processed.cleveland.data",
                18461,
                "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
            ),
            Content(
                "processed.hungarian.data",
                10263,
                "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
            ),
            Content(
                "processed.switzerland.data",
                4109,
                "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
            ),
            Content(
                "processed.va.data",
                6737,
                "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
            ),
        ),
    ),
    "credit": Dataset(
        name="credit",
        description="UCI Credit Approval: 652 complete records, 42 features, 2 classes",
        licence="CC BY 4.0",
        source="J. R. Quinlan (1987), doi:10.24432/C5FS30",
        contents=(Content("crx.data", 32218, "fff49bc186cbddb3ace7371d40d9fbbb3af4f126019c13ff3f562249b1454f4d"),),
    ),
    "mnist": Dataset(
        name="mnist",
        description="MNIST: 60,000 + 10,000 handwritten digits of 28 × 28 pixels, 10 classes",
        licence="none stated; usually passed on under CC BY-SA 3.0",
        source="Y. LeCun, C. Cortes, C. J. C. Burges, http://yann.lecun.com/exdb/mnist/",
        folder="mnist",
        **_idx_files(
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
            (
                "train-images-idx3-ubyte",
                47040016,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                9912422,
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            ),
            (
                "train-labels-idx1-ubyte",
                60008,
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                28881,
                "d53e105ee54ea40749a09fcbcd1e9432",
            ),
            (
                "t10k-images-idx3-ubyte",
                7840016,
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                1648877,
                "9fb629c4189551a2d022fa330f9573f3",
            ),
            (
                "t10k-labels-idx1-ubyte",
                10008,
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                4542,
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
    ),
    "fashion_mnist": Dataset(
        name="fashion_mnist",
        description="Fashion-MNIST: 60,000 + 10,000 articles of clothing of 28 × 28 pixels, 10 classes",
        licence="MIT",
        source="H. Xiao, K. Rasul, R. Vollgraf (2017), https://github.com/zalandoresearch/fashion-mnist",
        folder="fashion-mnist",
        system_folders=("/usr/share/datasets/fashion-mnist",),  # Debian's dataset-fashion-mnist, compressed anew
        **_idx_files(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            ),
            (
                "train-images-idx3-ubyte",
                47040016,
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                26421880,
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            ),
            (
                "train-labels-idx1-ubyte",
                60008,
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                29515,
                "25c81989df183df01b3e8a0aad5dffbe",
            ),
            (
                "t10k-images-idx3-ubyte",
                7840016,
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                4422102,
                "bef4ecab320f06d8554ea6380940ec79",
            ),
            (
                "t10k-labels-idx1-ubyte",
                10008,
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                5148,
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
    ),
    "cifar10": Dataset(
        name="cifar10",
        description="CIFAR-10: 50,000 + 10,000 colour photographs of 32 × 32 pixels, 10 classes",
        licence="none stated; the publisher asks to cite the report",
        source="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009)",
        folder="cifar10",
        contents=_CIFAR10,
        archive_folder="cifar-10-batches-bin",
        downloads=(
            Download(
                "cifar-10-binary.tar.gz",
                170052171,
                "c32a1d4ab5d03f1284b67883e8d87530",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                tuple(content.name for content in _CIFAR10),
            ),
        ),
    ),
}
