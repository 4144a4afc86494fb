"""A worker process: an engine with leased tokens, called at a steady rate; says when calls passed."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from redis.asyncio import Redis

from seckill.sentinel import ClusterConfig, Entry, FlowRule, Sentinel, Settings
from seckill.sentinel.redis import RedisTokenSource, token_source
from seckill.sentinel.words import ThresholdType

STEP_S = 0.004


async def main() -> None:
    order = json.loads(sys.argv[1])
    token_source.LEAVE_TIMEOUT_S = 60.0  # type: ignore[misc]  # a stall is no reason to stay listed
    client = Redis.from_url(order["url"], protocol=2)
    source = RedisTokenSource(
        client,
        namespace=order["namespace"],
        worker_id=order["worker"],
        workers_expected=order["workers"],
    )
    sentinel = Sentinel(
        token_source=source, settings=Settings(cluster_fallback=order.get("fallback", "share"))
    )
    config = ClusterConfig(flow_id=1, threshold_type=ThresholdType.GLOBAL)
    sentinel.flow.load(
        [FlowRule(resource="r", count=order["count"], cluster_mode=True, cluster_config=config)]
    )
    running = asyncio.create_task(source.run())
    while source.status().workers < order["workers"] or not source.status().in_contact:
        await asyncio.sleep(0.01)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    begins_s = float(await asyncio.to_thread(sys.stdin.readline))
    await asyncio.sleep(max(0.0, begins_s - time.time()))
    passed: list[int] = []
    offered = 0
    while (at_s := time.time() - begins_s) < order["seconds"]:
        # As many as should have come by now: a machine that stalls offers them late, not never.
        due = int(at_s * order["rate"])
        while offered < due:
            offered += 1
            entry = sentinel.try_entry("r")
            if isinstance(entry, Entry):
                passed.append(time.time_ns() // 1_000)
                entry.exit()
        await asyncio.sleep(STEP_S)
    running.cancel()
    await asyncio.wait([running])
    await client.aclose()
    sys.stdout.write(
        json.dumps(
            {
                "passed_us": passed,
                "offered": offered,
                "faults": sentinel.alarms.internal_errors,
                "exchanges": source.status().exchanges,
            }
        )
        + "\n"
    )


if __name__ == "__main__":
    asyncio.run(main())
