import hailstorm as hs

storm = hs.Topology("trending")
storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, _time TIMESTAMP")
