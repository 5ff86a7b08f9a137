"""What a model reads about code, word for word."""

from __future__ import annotations

from weftline import prompts


def test_the_texts_are_these() -> None:
    assert prompts.code.PARENT_ENDED == "Not executed: the code that asked for this call has ended."
    assert prompts.code.not_arguments("pay", "no") == "pay takes one object of arguments: no"
    assert prompts.code.too_many_calls(1000) == (
        "Not executed: the code of one turn may make at most 1,000 calls, and none after it has ended."
    )
    assert prompts.code.diverged("look", "pay") == (
        "The code was interrupted and restarted, and now calls pay where it called look before."
        " Its calls so far are not repeated. Write code that makes the same calls each time it runs."
    )
    assert prompts.code.diverged("pay", "pay").startswith(
        "The code was interrupted and restarted, and now calls pay with different arguments."
    )
    assert prompts.code.NO_BYTES == "Bytes cannot be passed to a tool: encode them as text."
    assert prompts.code.too_many_arguments("pay", 2, given=3) == "pay takes at most 2 arguments, not 3."
    assert prompts.code.argument_twice("pay", "payee") == "pay was given payee twice."
    assert prompts.code.CODE_PARAMETER == "The complete code. Nothing carries over from earlier code."
    assert prompts.code.LANGUAGE_PARAMETER == "The language of the code."
    assert prompts.code.out_of_time(30) == (
        "The code reached its limit of 30 seconds, not counting the time it waited for calls."
    )
    assert prompts.code.tool_out_of_time(2.5) == "The code reached its limit of 2.5 seconds."
    assert prompts.code.tool_out_of_time(1.0) == "The code reached its limit of 1 second."
    assert prompts.code.sandbox_busy(300) == (
        "The code did not begin: other code has kept this server busy for 300 seconds. Try again later."
    )
    assert prompts.code.CALL_OPEN == "no result when the code ended; it may have been carried out"
    assert prompts.code.sandbox_missing("no deno.") == "Code cannot be run here: no deno."


def test_a_result_comes_with_what_was_logged() -> None:
    assert prompts.code.code_result("5", "", []) == "5"
    assert prompts.code.code_result("5", "a\nb", []) == "5\n\nLogged:\na\nb"
    failed = [prompts.code.code_call("pay", '{"a":1}', outcome="no money")]
    assert prompts.code.code_result("5", "a", failed) == (
        '5\n\nFailed calls that the code did not await:\npay({"a":1}): no money\n\nLogged:\na'
    )


def test_a_failure_says_what_had_been_called() -> None:
    assert prompts.code.code_failed("error", "TypeError: x", "", []) == "The code failed: TypeError: x"
    assert prompts.code.code_failed("link_error", "x", "", []) == "The code was not run: x"
    assert prompts.code.code_failed("memory", "x", "", []) == "The code ran out of memory: x"
    assert prompts.code.calls_left_out({"done": 1200, "failed": 3}) == "… (1,203 more calls: 1,200 done, 3 failed)"
    called = [prompts.code.code_call("pay", '{"a":1}', outcome=prompts.code.CALL_OK)]
    assert prompts.code.code_failed("terminated", "x", "hm", called) == (
        'The code was stopped: x\n\nCalls that it made:\npay({"a":1}): done\n\nLogged:\nhm'
    )


def test_the_tool_describes_its_languages_and_functions() -> None:
    text = prompts.code.code_tool(["typescript", "python"], {"typescript": ["function a()"], "python": []})
    assert text == (
        "Runs code that you write, in a sandbox without files, network or timers, and returns its result and what it"
        " logged.\n\n"
        "The code can call these functions, which are asynchronous. Use it for several calls, and to select, combine or"
        " compute what you need from their results: you read only what the code returns. A result is an object or a"
        " list if the tool returns one, and a string otherwise.\n\n"
        "TypeScript is an ES module: use top-level await, and export the result with `export default`, as a value or as"
        " a function that returns it. Start calls together with Promise.all. A call that fails throws an error with the"
        " tool's message.\n\n"
        "Python is a module: use top-level await, and assign the result to `default`. There is no standard library and"
        " no import. Calls that are made first and awaited afterwards run together. A call that fails raises an"
        " exception with the tool's message.\n\n"
        "```typescript\nfunction a()\n```\n\n```python\n(no functions)\n```"
    )
