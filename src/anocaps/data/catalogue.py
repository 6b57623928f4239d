"""The datasets by name: where they come from and how to load them."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anocaps.base.errors import DataError
from anocaps.data import cifar, digits, idx, norb, store
from anocaps.data.dataset import Dataset, Split
from anocaps.data.download import RemoteFile, download_files, where_to_put

# Paths of the entry's files → training and test split.
Reader = Callable[[Sequence[Path]], tuple[Split, Split]]


@dataclass(frozen=True)
class Entry:
    name: str
    title: str
    licence: str
    class_names: tuple[str, ...]
    read: Reader
    files: tuple[RemoteFile, ...] = ()
    aliases: tuple[str, ...] = ()  # other names of its folder
    bundled_sha256: str = ""  # of pixels and labels, if the dataset has no files

    @property
    def folders(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def _read_idx(paths: Sequence[Path]) -> tuple[Split, Split]:
    train_images, train_labels, test_images, test_labels = paths
    return (
        idx.read_split(train_images, train_labels, classes=10),
        idx.read_split(test_images, test_labels, classes=10),
    )


def _read_norb(paths: Sequence[Path]) -> tuple[Split, Split]:
    return norb.read_split(*paths[:3]), norb.read_split(*paths[3:])


def _read_cifar(paths: Sequence[Path]) -> tuple[Split, Split]:
    return cifar.read_split(paths[:5]), cifar.read_split(paths[5:])


def _read_digits(_: Sequence[Path]) -> tuple[Split, Split]:
    return digits.read_digits()


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_NORB = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
_NORB_TRAIN = "smallnorb-5x46789x9x18x6x2x96x96-training"
_NORB_TEST = "smallnorb-5x01235x9x18x6x2x96x96-testing"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
_CIFAR_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_CIFAR_FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

# fmt: off
_ENTRIES = (
    Entry(
        "digits", "scikit-learn's handwritten digits, 8×8, 1,797 images, bundled",
        "CC BY 4.0 (UCI, E. Alpaydin and C. Kaynak)",
        digits.CLASSES, _read_digits,
        bundled_sha256="4f400effe08ef1aab7afb5ff8bde87f17c86b08d5b67d37f146c7318400a2849",
    ),
    Entry(
        "mnist", "MNIST handwritten digits, 28×28, 60,000 + 10,000 images",
        "CC BY-SA 3.0 (Y. LeCun and C. Cortes)",
        tuple("0123456789"), _read_idx,
        (
            RemoteFile(
                "train-images-idx3-ubyte", _MNIST, 9912422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            RemoteFile(
                "train-labels-idx1-ubyte", _MNIST, 28881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            RemoteFile(
                "t10k-images-idx3-ubyte", _MNIST, 1648877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            RemoteFile(
                "t10k-labels-idx1-ubyte", _MNIST, 4542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
    ),
    Entry(
        "fashion-mnist", "Fashion-MNIST clothes, 28×28, 60,000 + 10,000 images",
        "MIT (Zalando SE)",
        (
            "t-shirt", "trouser", "pullover", "dress", "coat",
            "sandal", "shirt", "sneaker", "bag", "ankle boot",
        ),
        _read_idx,
        (
            RemoteFile(
                "train-images-idx3-ubyte", _FASHION, 26421880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            RemoteFile(
                "train-labels-idx1-ubyte", _FASHION, 29515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            RemoteFile(
                "t10k-images-idx3-ubyte", _FASHION, 4422102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            RemoteFile(
                "t10k-labels-idx1-ubyte", _FASHION, 5148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
    ),
    Entry(
        "small-norb", "Small-NORB toys, stereo, 96×96 read as 48×48×2, 24,300 + 24,300 pairs",
        "research only, may not be sold; cite Y. LeCun, F. J. Huang, L. Bottou, CVPR 2004",
        norb.CLASSES, _read_norb,
        (
            RemoteFile(
                f"{_NORB_TRAIN}-dat.mat", _NORB, 131896188,
                "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
                "md5:8138a0902307b32dfa0025a36dfa45ec",
            ),
            RemoteFile(
                f"{_NORB_TRAIN}-cat.mat", _NORB, 348,
                "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa",
                "md5:fd5120d3f770ad57ebe620eb61a0b633",
            ),
            RemoteFile(
                f"{_NORB_TRAIN}-info.mat", _NORB, 71052,
                "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32",
                "md5:19faee774120001fc7e17980d6960451",
            ),
            RemoteFile(
                f"{_NORB_TEST}-dat.mat", _NORB, 130799817,
                "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
                "md5:e9920b7f7b2869a8f1a12e945b2c166c",
            ),
            RemoteFile(
                f"{_NORB_TEST}-cat.mat", _NORB, 347,
                "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff",
                "md5:fd5120d3f770ad57ebe620eb61a0b633",
            ),
            RemoteFile(
                f"{_NORB_TEST}-info.mat", _NORB, 10428,
                "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2",
                "md5:7c5b871cc69dcadec1bf6a18141f5edc",
            ),
        ),
        aliases=("smallnorb",),
    ),
    Entry(
        "cifar10", "CIFAR-10 photos in colour, 32×32, 50,000 + 10,000 images",
        "no licence stated, research use; cite A. Krizhevsky, 2009",
        cifar.CLASSES, _read_cifar,
        tuple(
            RemoteFile(
                name, _CIFAR, 170052171, _CIFAR_SHA256, f"sha256:{sha256}", _CIFAR_ARCHIVE
            )
            for name, sha256 in _CIFAR_FILES.items()
        ),
        aliases=("cifar-10", "cifar-10-batches-bin"),
    ),
)
# fmt: on
CATALOGUE = {entry.name: entry for entry in _ENTRIES}


def dataset_entry(name: str) -> Entry:
    if name not in CATALOGUE:
        raise DataError(f"There is no dataset {name!r}; choose one of {', '.join(CATALOGUE)}.")
    return CATALOGUE[name]


def available(name: str, data_dir: str | Path | None = None) -> bool:
    """Whether the dataset can be loaded without a download."""
    entry = dataset_entry(name)
    return not entry.files or None not in _found(entry, store.data_dir(data_dir))


def fetch_dataset(
    name: str, data_dir: str | Path | None = None, download: bool = True
) -> list[Path]:
    """The paths of the dataset's files. With `download`, missing files are downloaded."""
    entry = dataset_entry(name)
    if not entry.files:
        return []
    root = store.data_dir(data_dir)
    missing = [file for file, path in zip(entry.files, _found(entry, root)) if path is None]
    if missing:
        folder = store.writable_root(root) / entry.name
        if not download:
            raise DataError(f"Files of {name} are missing; {where_to_put(missing, folder)}")
        download_files(missing, folder)
    return [path for path in _found(entry, root) if path is not None]


def _found(entry: Entry, root: Path) -> list[Path | None]:
    return [store.find(root, entry.folders, file.name) for file in entry.files]


def load_dataset(name: str, data_dir: str | Path | None = None, download: bool = True) -> Dataset:
    """Load a dataset by its name.

    Parameters
    ----------
    name : str
        A name from `anocaps data list`. "digits" needs no download.
    data_dir : path, default=None
        The folder of the files. None: the folder in ANOCAPS_DATA, or else the user's cache.
    download : bool, default=True
        Whether to download missing files.

    Returns
    -------
    dataset : Dataset
        Its `train` and `test` splits, each with `images` and `labels`, and hashes of its files.
    """
    entry = dataset_entry(name)
    paths = fetch_dataset(name, data_dir, download)
    train, test = entry.read(paths)
    if not entry.files:
        sha256 = _hash_of_arrays(train, test)
        official = sha256 == entry.bundled_sha256
        return Dataset(name, train, test, entry.class_names, {name: sha256}, official)
    hashes, official = {}, True
    for file, path in zip(entry.files, paths):
        found = store.content_hashes(path)
        kind, published = file.content.split(":")
        hashes[file.name] = found["sha256"]
        official = official and found[kind] == published
    return Dataset(name, train, test, entry.class_names, hashes, official)


def _hash_of_arrays(train: Split, test: Split) -> str:
    digest = hashlib.sha256()
    for split in (train, test):
        digest.update(split.images.tobytes())
        digest.update(split.labels.astype("<i8").tobytes())
    return digest.hexdigest()
