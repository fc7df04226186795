"""Tasks over the paper's data sets (section 4.2.3), in both directions: WMT14 de-en, WMT16 ro-en and WMT17 zh-en.

Splits, text and order are those of tensorflow_datasets. Surrounding white space is removed, and SentencePiece does the
rest. Pairs with an empty side are left out and counted.

    dataset            builder                 train (paper)   validation     test
    'wmt14_de_en'      wmt14_translate/de-en   4.5M            newstest2013   newstest2014
    'wmt16_ro_en'      wmt16_translate/ro-en   610k            newsdev2016    newstest2016
    'wmt17_zh_en'      wmt17_translate/zh-en   20M             newsdev2017    newstest2017

These tasks download nothing. Build a data set first, with one command (it needs the network, and hours for the larger
sets):

    python -c "import tensorflow_datasets as tfds; tfds.builder('wmt14_translate/de-en', data_dir='FOLDER').download_and_prepare()"

Then run gin/runs/wmt14_de_en_ar.gin, or another gin/runs/wmt*.gin, with --gin.TFDS_DIR="'FOLDER'".
"""  # noqa: E501  The command stays on one line, so that it can be copied.

from __future__ import annotations

from collections.abc import Iterator

import tensorflow_datasets as tfds

from padir.data.sources import Pairs
from padir.errors import PadirError
from padir.files.paths import as_path, joined
from tasks import TranslationTask, translation_task

DATASETS = {
    "wmt14_de_en": "wmt14_translate/de-en",
    "wmt16_ro_en": "wmt16_translate/ro-en",
    "wmt17_zh_en": "wmt17_translate/zh-en",
}
SPLITS = ("train", "validation", "test")


class TranslationPairs(Pairs):
    """The pairs of one split of a translation set of tensorflow_datasets, streamed in their order on disk."""

    def __init__(self, builder: tfds.core.DatasetBuilder, split: str, languages: tuple[str, str], limit: int | None):
        """Reads no pair yet.

        Args:
          builder: builder of a set that is on disk and has one text feature per language.
          split: name of the split.
          languages: feature names of source and target.
          limit: largest number of pairs to read; None reads all.
        """
        self._builder, self._languages = builder, languages
        count = builder.info.splits[split].num_examples
        self._instruction = split if limit is None or limit >= count else f"{split}[:{limit}]"
        # An upper bound until the split has been read once, because it counts pairs with an empty side.
        self.total = count if limit is None else min(limit, count)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields (source, target) without surrounding white space."""
        self.skipped = total = 0
        for row in self._builder.as_dataset(split=self._instruction, shuffle_files=False).as_numpy_iterator():
            pair = tuple(row[language].decode("utf-8").strip() for language in self._languages)
            if all(pair):
                total += 1
                yield pair
            else:
                self.skipped += 1
        self.total = total


def register(
    name: str,
    vocabulary_path: str,
    *,
    dataset: str,
    reverse: bool = False,
    data_dir: str | None = None,
    limit_train: int | None = None,
) -> TranslationTask:
    """Registers a task over one direction of one of the paper's data sets.

    Args:
      name: name of the Seqio task.
      vocabulary_path: SentencePiece model.
      dataset: 'wmt14_de_en', 'wmt16_ro_en' or 'wmt17_zh_en'. The first language is the source.
      reverse: whether to translate from English instead.
      data_dir: folder in which tensorflow_datasets built the set. None is the default of tensorflow_datasets: the
        environment variable TFDS_DATA_DIR, or else ~/tensorflow_datasets.
      limit_train: largest number of training pairs to read; None reads all.

    Raises:
      PadirError: the data set is unknown or has not been built. The message has the command that builds it.
    """
    if dataset not in DATASETS:
        raise PadirError(f"task {name}: option dataset={dataset!r} must be one of {', '.join(DATASETS)}")
    if limit_train is not None and limit_train < 1:
        raise PadirError(f"task {name}: option limit_train={limit_train} must be at least 1, or None for all")
    builder = _builder(name, dataset, data_dir)
    foreign, english = DATASETS[dataset][-5:].split("-")
    languages = (english, foreign) if reverse else (foreign, english)
    return translation_task(
        name,
        vocabulary_path,
        {
            split: TranslationPairs(builder, split, languages, limit_train if split == "train" else None)
            for split in SPLITS
        },
        # It has the version, shard lengths and byte counts, so its hash identifies the set without reading all records.
        files=(str(as_path(builder.data_dir) / "dataset_info.json"),),
        source_language=languages[0],
        target_language=languages[1],
    )


def _builder(name: str, dataset: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
    folder = None if data_dir is None else str(joined(data_dir, ""))
    builder = tfds.builder(DATASETS[dataset], data_dir=folder)
    if not builder.is_prepared():
        given = "" if folder is None else f", data_dir={folder!r}"
        raise PadirError(
            f'task {name}: {builder.data_dir} does not exist; build it with: python -c "import tensorflow_datasets as '
            f"tfds; tfds.builder('{DATASETS[dataset]}'{given}).download_and_prepare()\""
        )
    return builder
