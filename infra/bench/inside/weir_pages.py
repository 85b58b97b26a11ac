"""The page table of a running engine, written out after each of its steps.

Imported by vLLM in the engine's environment only (`--scheduler-cls weir_pages.PagesScheduler`); started by bench
`paging`. Reads what the scheduler holds and changes nothing: of each running request its tokens and, by logical block,
physical block and reference count. No token and no prompt is written. vLLM does not promise this interface: where it
has changed, the bench fails.
"""

import json
import os
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]

FILE = os.environ["WEIR_PAGES_FILE"]


class PagesScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's own, with a look at its table."""

    def schedule(self, *args: Any, **options: Any) -> Any:
        made = super().schedule(*args, **options)
        if self.running:
            with open(FILE, "a") as file:  # noqa: PTH123 - within the engine's step
                file.write(json.dumps([self._pages(request) for request in self.running]) + "\n")
        return made

    def _pages(self, request: Any) -> dict[str, Any]:
        [blocks] = self.kv_cache_manager.get_blocks(request.request_id).blocks
        pages = [(block.block_id, block.ref_cnt) for block in blocks]
        return {"prompt": request.num_prompt_tokens, "tokens": request.num_tokens, "pages": pages}
