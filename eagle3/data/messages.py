"""One conversation of a prompt set, whatever its dialect, as the messages that a template reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eagle3.data.records import Message, turns

OPENAI = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
SHAREGPT = {
    **OPENAI,
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "function_call": "call",
    "observation": "tool",
}
"""ShareGPT's names of the roles, in the copies of it that are about."""

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names under which a data set keeps what the model thought before it answered."""


def read_messages(where: str, row: Mapping[str, Any]) -> list[Message]:
    """The messages of a row that has `messages`, `conversations` (ShareGPT) or a `prompt`.

    A message has `role` (system, user, assistant or tool) and `content`, text that may be empty in
    an answer only. An answer may have `reasoning_content` and `tool_calls` (arguments as an
    object), a tool's message `name` and `tool_call_id`. Messages after the last user's or answer
    are dropped: nothing follows them.

    Raises:
        ValueError: names the place, what is wrong there and what was expected.
    """
    if row.get("messages") is not None:
        found = _dialect(where, row["messages"], "role", "content", OPENAI)
    elif row.get("conversations") is not None:
        found = _dialect(where, row["conversations"], "from", "value", SHAREGPT)
    elif isinstance(row.get("prompt"), str):
        found = _dialect(where, [{"role": "user", "content": row["prompt"]}], "role", "content", {})
    else:
        keys = ", ".join(map(str, row)) or "nothing"
        raise ValueError(
            f"{where}: has {keys}; expected messages, conversations or a prompt that is text"
        )
    while found and found[-1]["role"] not in ("user", "assistant"):
        found.pop()
    if not any(message["role"] == "user" for message in found):
        raise ValueError(f"{where}: the conversation has no user message")
    if not turns(found):
        raise ValueError(f"{where}: a tool is called before the first user message")
    return found


def read_tools(where: str, row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The row's `tools` (JSON schemas, or their JSON as text); None when it has none.

    Raises:
        ValueError: they are something else.
    """
    tools = row.get("tools")
    if isinstance(tools, str):
        tools = _json(tools) if tools.strip() else None
    if tools in (None, []):
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError(f"{where}: tools must be a list of objects (JSON schemas)")
    _check_characters(where, "list of tools", tools)
    return [dict(tool) for tool in tools]


def _dialect(
    where: str, items: Any, role_key: str, text_key: str, roles: Mapping[str, str]
) -> list[Message]:
    if not isinstance(items, list):
        raise ValueError(f"{where}: expected a list of messages, got a {type(items).__name__}")
    roles = roles or OPENAI
    found = []
    for item in items:
        if not isinstance(item, Mapping) or role_key not in item or _textless(item, text_key):
            raise ValueError(f"{where}: a message must have {role_key!r} and {text_key!r}")
        if not isinstance(item[role_key], str) or item[role_key] not in roles:
            raise ValueError(
                f"{where}: unknown role {item[role_key]!r}, expected one of {', '.join(roles)}"
            )
        found.append(_message(where, roles[item[role_key]], item, text_key))
    return found


def _textless(item: Mapping[str, Any], text_key: str) -> bool:
    """Without text, and without the tool calls that may stand for it."""
    return text_key not in item and not item.get("tool_calls")


def _message(where: str, role: str, item: Mapping[str, Any], text_key: str) -> Message:
    if role == "call":
        call = _json(str(item.get(text_key, "")))
        calls = call if isinstance(call, list) else [call]
        item = {"tool_calls": calls}
        role = "assistant"
    content = _text(where, role, item.get(text_key))
    message: Message = {"role": role, "content": content}
    if role == "assistant":
        reasoning = next((item[key] for key in REASONING if item.get(key)), None)
        if reasoning is not None:
            message["reasoning_content"] = _text(where, "assistant", reasoning)
        if item.get("tool_calls"):
            message["tool_calls"] = _calls(where, item["tool_calls"])
    elif not content.strip() and role != "tool":
        raise ValueError(f"{where}: the {role} message is empty or not text")
    if role == "tool":
        message |= {key: str(item[key]) for key in ("name", "tool_call_id") if item.get(key)}
    _check_characters(where, f"{role} message", message)
    return message


def _text(where: str, role: str, value: Any) -> str:
    """Text, or a list of parts that are text."""
    if isinstance(value, list):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in value]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{where}: the {role} message has parts that are not text")
        value = "".join(map(str, texts))
    if value is None:
        value = ""
    if not isinstance(value, str):
        raise ValueError(f"{where}: the {role} message is empty or not text")
    return value


def _check_characters(where: str, what: str, value: Any) -> None:
    """Refuse what JSON can hold and UTF-8 cannot."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where}: the {what} has half a surrogate pair (\\ud800…)") from None


def _calls(where: str, calls: Any) -> list[dict[str, Any]]:
    """Tool calls in the form that templates read: `{"type", "function": {"name", "arguments"}}`."""
    found = []
    for call in calls if isinstance(calls, list) else [None]:
        body = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
            raise ValueError(f"{where}: a tool call must be an object with a name and arguments")
        arguments = body.get("arguments", body.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _json(arguments) if arguments.strip() else {}
        if not isinstance(arguments, Mapping):
            raise ValueError(f"{where}: the arguments of {body['name']} are not an object")
        entry: dict[str, Any] = {
            "type": "function",
            "function": {"name": body["name"], "arguments": dict(arguments)},
        }
        if isinstance(call, Mapping) and call.get("id"):
            entry["id"] = str(call["id"])
        found.append(entry)
    return found


def _json(text: str) -> Any:
    """The value, or the empty text where it is not JSON: the caller names what it expected."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ""
