"""What every part of a report is made from."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Basis = Literal["given", "config", "checkpoint", "computed", "measured", "datasheet", "assumed"]


class Part(BaseModel):
    """Base of every part of a report."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )
