"""The messages of NVSentinel's interface, made of its field names and numbers by protobuf.

From `data-models/protobufs/health_event.proto`, package `datamodels`: only fields that are sent. To
send another, add its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from rankscope.diagnose.nvsentinel.health_event import AGENT, VERSION, HealthEvent

PACKAGE = "datamodels"
METHOD = f"/{PACKAGE}.PlatformConnector/HealthEventOccurredV1"
EXECUTE_REMEDIATION, STORE_ONLY = 1, 2
ACTIONS = {"NONE": 0, "COMPONENT_RESET": 2, "CONTACT_SUPPORT": 5, "RESTART_BM": 24}
_TEXT, _FLAG, _NUMBER, _CHOICE = "TYPE_STRING", "TYPE_BOOL", "TYPE_UINT32", "TYPE_INT32"
# Message: (field, number, type, repeated). A type with a point is a message. Enumerations travel as integers do.
_FIELDS: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "Entity": (("entityType", 1, _TEXT, False), ("entityValue", 2, _TEXT, False)),
    "MetadataEntry": (("key", 1, _TEXT, False), ("value", 2, _TEXT, False)),  # a map travels as such entries
    "HealthEvent": (
        ("version", 1, _NUMBER, False), ("agent", 2, _TEXT, False), ("componentClass", 3, _TEXT, False),
        ("checkName", 4, _TEXT, False), ("isFatal", 5, _FLAG, False), ("isHealthy", 6, _FLAG, False),
        ("message", 7, _TEXT, False), ("recommendedAction", 8, _CHOICE, False), ("errorCode", 9, _TEXT, True),
        ("entitiesImpacted", 10, ".Entity", True), ("metadata", 11, ".MetadataEntry", True),
        ("generatedTimestamp", 12, ".google.protobuf.Timestamp", False), ("nodeName", 13, _TEXT, False),
        ("processingStrategy", 16, _CHOICE, False),
    ),
    "HealthEvents": (("version", 1, _NUMBER, False), ("events", 2, ".HealthEvent", True)),
}  # fmt: skip


def encode(events: Sequence[HealthEvent], remediate: bool = False) -> bytes:
    """Encode events as one HealthEvents message.

    `remediate`: let NVSentinel act on them; else it only stores them.
    """
    strategy = EXECUTE_REMEDIATION if remediate else STORE_ONLY
    whole: bytes = _message("HealthEvents")(
        version=VERSION, events=[_event(one, strategy) for one in events]
    ).SerializeToString()
    return whole


def _event(one: HealthEvent, strategy: int) -> Any:
    """Convert an event to its protobuf message. `strategy`: EXECUTE_REMEDIATION or STORE_ONLY."""
    event = _message("HealthEvent")(
        version=VERSION, agent=AGENT, componentClass=one.component, checkName=one.check, isFatal=one.fatal,
        isHealthy=one.healthy, message=one.message, recommendedAction=ACTIONS[one.action], errorCode=one.codes,
        entitiesImpacted=[_message("Entity")(entityType=kind, entityValue=value) for kind, value in one.entities],
        metadata=[_message("MetadataEntry")(key=key, value=value) for key, value in one.metadata.items()],
        nodeName=one.node, processingStrategy=strategy,
    )  # fmt: skip
    event.generatedTimestamp.FromMilliseconds(int(one.at * 1000))
    return event


@cache
def _message(name: str) -> Any:
    """Return the protobuf class of a message in `_FIELDS`. Loads protobuf."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    """Build the protobuf descriptors of all messages in `_FIELDS`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2

    # A pool of our own: another program in this process may have NVSentinel's own file in the default one.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name="health_event.proto", package=PACKAGE, syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind.startswith("."):
                full = kind if kind.startswith(".google") else f".{PACKAGE}{kind}"
                message.field.add(name=field, number=number, label=label, type=kinds.TYPE_MESSAGE, type_name=full)
            else:
                message.field.add(name=field, number=number, label=label, type=getattr(kinds, kind))
    pool.Add(file)
    return pool
