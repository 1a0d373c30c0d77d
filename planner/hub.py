"""Hugging Face ids: config and index from the local hub cache or, with the `hub` extra, from the hub."""

import re
from importlib.util import find_spec
from pathlib import Path

from planner.errors import InputError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
FILES = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")


def checkpoint_directory(hub_id: str, cache: Path | None, *, download: bool = True) -> Path:
    """The directory that holds a hub model's config.json.

    cache: the hub cache's folder, such as ~/.cache/huggingface/hub
    raises: InputError that says which file to save where the id is in no cache and cannot be fetched
    """
    cached = _cached(hub_id, cache) if cache else None
    if cached:
        return cached
    if download and find_spec("huggingface_hub"):
        return _download(hub_id, cache)
    raise InputError(
        f"--model: {hub_id} is not in the local Hugging Face cache and huggingface_hub is not installed: save "
        f"https://huggingface.co/{hub_id}/resolve/main/config.json and pass its path, or install "
        "'llm-serving-planner[hub]'"
    )


def _cached(hub_id: str, cache: Path) -> Path | None:
    """The snapshot that refs/main names, else the newest that has a config.json."""
    repository = cache / ("models--" + hub_id.replace("/", "--"))
    try:
        main = repository / "refs" / "main"
        snapshots = [repository / "snapshots" / main.read_text().strip()] if main.is_file() else []
        others = [p for p in (repository / "snapshots").glob("*") if p.is_dir()]
        snapshots += sorted(others, key=lambda p: p.stat().st_mtime, reverse=True)
        return next((p for p in snapshots if (p / "config.json").is_file()), None)
    except (OSError, ValueError):
        return None


def _download(hub_id: str, cache: Path | None) -> Path:
    """config.json, and what else of FILES the repository has, fetched into the hub cache."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        get_hf_file_metadata(hf_hub_url(hub_id, FILES[0]))  # one try: without a network this fails at once
        directory = Path(hf_hub_download(hub_id, FILES[0], cache_dir=cache)).parent
        for name in FILES[1:]:
            try:
                hf_hub_download(hub_id, name, cache_dir=cache)
            except LocalEntryNotFoundError:
                raise
            except EntryNotFoundError:
                continue  # the repository has no such file
    except Exception as error:  # the library raises many kinds: network, authorisation, unknown id
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"--model: {hub_id} could not be fetched ({reason}): save "
            f"https://huggingface.co/{hub_id}/resolve/main/config.json and pass its path"
        ) from error
    return directory
