"""What the native protocol says, as pydantic models: they check requests and write the OpenAPI document."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flywheel.types import Codec

VERSION = 1


class Message(BaseModel):
    """Unknown fields are refused; neither infinity nor NaN is a number."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Request(Message):
    """What a client says; `"5"` is no number."""

    model_config = ConfigDict(strict=True)


class ObserveModel(Request):
    """What observations hold."""

    image: Codec = Field("png", description="codec of screenshots; `/v1/capabilities` lists those that are sent")
    quality: int = Field(85, ge=1, le=100, description="of JPEG")
    accessibility: bool = Field(False, description="send the accessibility tree; may take seconds")
    accessibility_chars: int = Field(4096, ge=0, le=1_000_000, description="the tree is cut here")
    terminal: bool = Field(False, description="send what the terminal shows")


class LeaseRequest(Request):
    """Ask for a desktop."""

    ttl_s: float = Field(60, ge=1, le=3600, description="seconds of silence after which the lease expires")
    wait_s: float = Field(0, ge=0, le=60, description="seconds to wait for a free desktop")
    client: str = Field("", max_length=200, description="who asks, for people who look")
    apps: list[Annotated[str, Field(max_length=100)]] = Field([], max_length=100, description="apps that are needed")
    platform: str | None = Field(None, max_length=100, description="platform that is needed")


class ResetRequest(Request):
    """Set up a task."""

    task: dict[str, Any] = Field(description="the task: id, instruction, domain, config, evaluator, ...")
    observe: ObserveModel = ObserveModel()
    request: str | None = Field(
        None, max_length=100, description="the same again gives the stored answer instead of another set-up"
    )


class StepRequest(Request):
    """Execute one action."""

    index: int = Field(ge=0, description="number of the step, from 0; the last one again gives the stored answer")
    action: dict[str, Any] = Field(description='`{"type": "click", "x": 4, "y": 5}`; pixels')
    pause_s: float | None = Field(None, ge=0, le=60, description="seconds to let the screen settle; null: its own")


class EmptyRequest(Request):
    """Nothing needs to be said."""


class Health(Message):
    """How the server is."""

    status: Literal["ok", "draining"]
    protocol: int
    version: str
    backend: str
    desktops: int
    free: int
    leases: int
    waiting: int = Field(description="requests that wait for a desktop")
    problems: list[str] = Field(description="why desktops are down, one sentence each")


class CapabilitiesModel(Message):
    """What every desktop of this server offers."""

    screen: tuple[int, int] = Field(description="width and height, pixels")
    platform: str
    apps: list[str]
    internet: bool
    action_spaces: list[str]
    snapshots: bool
    isolation: str
    images: list[str]


class LeaseGrant(Message):
    """A desktop, until the lease ends."""

    lease: str
    secret: str = Field(description="send it as X-Lease-Secret with every command")
    expires_in_s: float
    desktop: int
    capabilities: CapabilitiesModel


class LeaseInfo(Message):
    """A live lease, without its secret."""

    lease: str
    desktop: int
    client: str
    age_s: float
    expires_in_s: float
    task: str | None
    steps: int


class DesktopInfo(Message):
    """One desktop of the pool."""

    desktop: int
    state: str
    since_s: float
    pid: int | None
    lease: str | None
    episodes: int
    starts: int
    problem: str | None


class Beat(Message):
    """How long the lease lives from now on."""

    expires_in_s: float


class View(Message):
    """A page on the loopback of the env server's own machine."""

    url: str


class Reward(Message):
    """What the task's checker says, in [0, 1]."""

    reward: float


class ErrorDetail(Message):
    """`kind` says whose fault it is."""

    kind: Literal["request", "infrastructure", "setup", "agent", "evaluator"]
    message: str


class ErrorBody(Message):
    """Every answer that is not a success."""

    error: ErrorDetail
