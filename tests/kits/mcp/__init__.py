"""The public MCP conformance suite and the official TypeScript clients, run by `make mcp-kit`."""
