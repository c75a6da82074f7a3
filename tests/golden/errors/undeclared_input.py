import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, text STRING, likes INT, at TIMESTAMP")
from hailstorm.topology.stateless import Where  # noqa: E402

storm.add(Where("loop", tweets.step.at, ("loop",), tweets.schema, predicate="true"))
