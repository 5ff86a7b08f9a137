"""What existing client SDKs of this protocol depend on, shown over plain HTTP, without any of them.

The Python SDK itself was run against the server by hand, sync and async: 0.9.1, 0.10.0, 0.11.0, 0.23.0 and 2026.10.2.
The TypeScript and Go clients could not be installed; programs that read the server's bytes by the rules of their source
stood in for them, on Node's fetch and on Go's net/http and encoding/json. docs/compatibility.md says what was tried and
how to repeat it; `readers.py` has those rules for these tests.
"""
