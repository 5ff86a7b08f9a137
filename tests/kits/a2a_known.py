"""What the A2A compatibility kit gets wrong, test by test, with the reason. `docs/a2a-kit.md` has the same list."""

from __future__ import annotations

_NOTIFICATION = (
    "The request has no id, so it is a notification, and JSON-RPC forbids a response to one, even an error; the "
    "kit waits for one."
)
_AGENT = (
    "The kit needs an agent that was written for it, whose answer is {0}. The specification does not require "
    "that. Weftline's agents answer with text, or with data if they have an output schema."
)

KNOWN: dict[str, dict[str, str]] = {
    "0.3": {
        "test_json_rpc_compliance::test_rejects_invalid_json_rpc_requests[invalid_request2--32601]": _NOTIFICATION,
        "test_json_rpc_compliance::test_rejects_invalid_json_rpc_requests[invalid_request4--32602]": _NOTIFICATION,
        "test_error_validation_enhanced::test_invalid_method_error_validation": (
            "The kit passes a whole request as the name of the method, so it sends an object instead of a string."
            " That is an invalid request (-32600), not an unknown method."
        ),
        "test_agent_card_security::test_public_agent_card_access_control": (
            "The kit fetches the card from the URL of the JSON-RPC endpoint, without a credential. The card is at"
            " /.well-known/agent-card.json, and it may be protected."
        ),
        "test_agent_card_security::test_sensitive_information_protection": (
            "The kit mistakes the server's address for a secret, because the server is on 127.0.0.1."
        ),
        "test_multi_transport_equivalence::test_agent_card_access_equivalence": (
            "The kit reads the card with agent/getAuthenticatedExtendedCard, although the card says that there is"
            " no extended card."
        ),
    },
    "1.0": {
        "test_requirements::test_must_requirement[CORE-SEND-003-jsonrpc]": (
            "The kit sends a file of an unsupported type, which must be refused with "
            "ContentTypeNotSupportedError, and then fails because the call did not succeed."
        ),
        "TestFileArtifact::test_task_has_file_artifact[jsonrpc]": _AGENT.format("a file"),
        "TestFileUrlArtifact::test_task_has_file_url_artifact[jsonrpc]": _AGENT.format("the address of a file"),
        "TestMessageResponse::test_returns_message_with_text_part[jsonrpc]": _AGENT.format("a message without a task"),
    },
}
