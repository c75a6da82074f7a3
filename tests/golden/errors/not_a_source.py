import hailstorm as hs

storm = hs.Topology("trending")
storm.spout("tweets", "data/tweets", schema="text STRING")
