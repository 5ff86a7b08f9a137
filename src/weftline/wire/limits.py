"""Every number, pattern and keyword of the protocol's requests.

KB and MB are powers of 1024, measured in UTF-8 bytes. Patterns are meant for a whole string (`re.fullmatch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weftline.text.json_size import MAX_JSON_VALUES
from weftline.text.schema_cost import MAX_SCHEMA_BYTES

KB = 1024
MB = 1024 * KB

MAX_BODY_BYTES = 16 * MB
"""For any request body, so that the longest tool result fits even if every byte is escaped."""
MAX_BODY_BYTES_WITH_FILES = 32 * MB
"""With attachments, as much as model APIs take. The rest of such a body is within `MAX_BODY_BYTES`."""
MAX_BODY_VALUES = MAX_JSON_VALUES
"""JSON values in any request body, field names included."""
MAX_JSON_DEPTH = 200
"""More deeply nested bodies may be refused, as later readers of the stored spec may have less stack."""

ID_PATTERN = r"[A-Za-z0-9_-]{1,128}"
"""Agent ids, ids of stored tools."""
TOOL_NAME_PATTERN = r"[a-zA-Z0-9_]{1,64}"
"""A name that the model sees."""
MCP_TOOL_NAME_PATTERN = r"[a-zA-Z0-9_./-]{1,128}"
"""A name that an MCP server gives to a tool. Providers respell it for models that accept fewer characters."""
PLUGIN_NAME_PATTERN = r"@[a-z][a-z0-9_-]{0,63}/[a-z][a-z0-9_-]{0,63}|[a-zA-Z0-9_-]{1,64}"
SCHEMA_NAME_PATTERN = r"[a-zA-Z0-9_-]{1,64}"
METADATA_KEY_PATTERN = r"[A-Za-z0-9._-]{1,64}"
HEADER_NAME_PATTERN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}"
HEADER_VALUE_PATTERN = r"[^\x00-\x08\x0a-\x1f\x7f]*"
"""No line breaks or other control characters, so that a value cannot inject another header."""
URL_PATTERN = r"[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#\x00-\x1f]+[^\s\x00-\x1f]*"

MAX_TURN_ID_CHARS = 255
MAX_RUN_NAME_CHARS = 256
MAX_MODEL_ID_CHARS = 256
MAX_MODEL_FALLBACKS = 8
MAX_SERVER_NAME_CHARS = 256
MAX_CONTEXT_ID_CHARS = 1024
MAX_URL_CHARS = 8 * KB
MAX_HEADER_VALUE_BYTES = 8 * KB
MAX_MCP_LOCAL_TOOLS = 64
MAX_TOOLS = 512
"""For one run; tools of `mcp_local` entries count one by one."""
MAX_MESSAGES = 10_000
MAX_TOOL_FILTER_NAMES = 512
MAX_TOOL_FILTER_NAME_CHARS = 256
MAX_HEADERS = 64
MAX_HEADERS_BYTES = 64 * KB
"""For the values of all headers of one tool."""
MAX_TOOLS_HEADERS_BYTES = 256 * KB
"""For those of all tools of one request."""

MAX_ATTACHMENTS = 20
"""For one request, with all its messages."""
MAX_ATTACHMENT_BYTES = 10 * MB
"""Of the content itself, before base64."""
MAX_ATTACHMENT_NAME_CHARS = 255
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
FILE_TYPES = ("application/pdf", "application/json", "application/xml", "application/yaml")
"""In addition to every `text/…`."""

MAX_AGENT_SPEC_BYTES = 1 * MB
"""For a stored agent, as every run of it, every list of agents and every card reads it."""
MAX_OUTPUT_SCHEMA_BYTES = 32 * KB
MAX_TOOL_SCHEMA_BYTES = MAX_SCHEMA_BYTES

MAX_METADATA_ENTRIES = 16
MAX_METADATA_VALUE_CHARS = 512
"""As many as fit into a row of an index of Postgres, at four bytes each."""
MAX_METADATA_BYTES = 16 * KB

MAX_REASONING_LEVEL = 100
REASONING_LEVELS: Mapping[str, int] = MappingProxyType(
    {"off": 0, "minimal": 15, "low": 30, "medium": 50, "high": 80, "xhigh": 90}
)

MAX_TEMPERATURE = 2.0
MAX_STOP_SEQUENCES = 16
MAX_STOP_SEQUENCE_CHARS = 256
MAX_OUTPUT_TOKENS = 10_000_000
"""More than any model writes; the model's own limit is checked against the catalog."""

MIN_LOOP_SOFT = 2
MIN_LOOP_HARD = 3
MAX_LOOP_THRESHOLD = 100
DEFAULT_LOOP_SOFT = 3
DEFAULT_LOOP_HARD = 6

MAX_TOOL_BUDGETS = 32
MAX_BUDGET_NAME_CHARS = 120
MAX_BUDGET_CALLS = 1000
_KNOWLEDGE_BUDGETS = {
    "consult_ontology": 4,
    "search_deals": 5,
    "search_meetings": 5,
    "search_companies": 5,
    "search_people": 5,
    "search_tickets": 5,
    "search_conversations": 5,
    "search_accounts": 5,
    "search_releases": 5,
    "search_issues": 5,
}
DEFAULT_TOOL_BUDGETS: Mapping[str, int] = MappingProxyType(
    {
        "recall": 4,
        "traverse": 3,
        # The protocol's name of a workspace's knowledge, and ours.
        **{f"{prefix}_{name}": most for prefix in ("hive", "knowledge") for name, most in _KNOWLEDGE_BUDGETS.items()},
    }
)

MAX_TOOL_TURNS = 100
"""Both the default and the maximum; larger numbers are reduced to it."""
DEFAULT_LOCAL_TIMEOUT_MS = 300_000
MAX_POLICY_ENTRIES = 64
"""For each list in a policy."""
MAX_POLICY_NAME_CHARS = 120
MAX_LOCAL_TIMEOUT_MS = 7 * 24 * 3600 * 1000
MAX_AWAIT_MS = 366 * 24 * 3600 * 1000
"""Long, as people go on holiday."""

MAX_TOOL_USE_ID_CHARS = 256
MAX_RESULT_BYTES = 2 * MB
MAX_RESULT_FILES_BYTES = 5 * MB
"""Of all files of a result together, before base64."""
MAX_ERROR_BYTES = 8 * KB
MAX_FAILURE_BYTES = 16 * KB
"""For what a client reports about an error besides its text."""
EMPTY_RESULT_USER_AGENT = "Go-http-client/"
"""Clients of this kind leave out the key if a tool returns the empty string."""

DEFAULT_RUN_NAME = "ephemeral"
DEFAULT_SCHEMA_NAME = "output"
