from weftline.threads import Request, ThreadState, define_thread_endpoint


@define_thread_endpoint
async def status(request: Request, state: ThreadState, params: dict[str, str]) -> dict[str, object]:
    files = await state.get_file_stats()
    return {"refunded": await state.get_value("refunded"), "receipts": files.file_count}
