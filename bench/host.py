"""The process that a peer lives in: reads orders from a pipe, a line each, and answers with a line each.

    python -m bench.host <peer> <work as JSON> <options as JSON>

Started by `contest.py` only. Spark and user code may print what they like: answers go to a descriptor of their own.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import traceback
from dataclasses import asdict
from typing import Any

from bench.peers.peer import Peer
from bench.work import Work

PEERS = {
    "streaming": "bench.peers.streaming:Streaming",
    "batch": "bench.peers.batch:Batch",
    "hailstorm": "bench.peers.hailstorm:Hailstorm",
    "auditor": "bench.peers.auditor:Auditor",
    "backfiller": "bench.peers.backfiller:Backfiller",
    "live-backfiller": "bench.peers.backfiller:LiveBackfiller",
    "mapper": "bench.peers.mapper:Mapper",
    "kafka-reader": "bench.peers.kafka_reader:KafkaReader",
    "kafka-counter": "bench.peers.kafka_counter:KafkaCounter",
    "kafka-live": "bench.peers.kafka_counter:KafkaLive",
    "kafka-floor": "bench.peers.kafka_floor:KafkaFloor",
    "nexmark": "bench.peers.nexmark:Nexmark",
    "nexmark-streaming": "bench.peers.nexmark:NexmarkStreaming",
    "pipeline": "bench.peers.pipeline:Pipeline",
}


def main() -> None:
    name, work, options = sys.argv[1], Work.from_json(sys.argv[2]), json.loads(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, attribute = PEERS[name].partition(":")
    peer = getattr(importlib.import_module(module), attribute)(work, **options)
    try:
        for line in sys.stdin:
            answers.write(json.dumps(_answer(peer, json.loads(line))) + "\n")
    finally:
        peer.close()
        shutil.rmtree(peer.folder, ignore_errors=True)


def _answer(peer: Peer, order: dict[str, Any]) -> Any:
    try:
        match order["do"]:
            case "prepare":
                return dict(peer.prepare())
            case "burst":
                return [asdict(tick) for tick in peer.burst(order["ticks"])]
            case "figures":
                return dict(peer.figures())
            case unknown:
                raise ValueError(f"no such order: {unknown}")
    except Exception:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    main()
