import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, likes INT")
tweets.fold("counts", by="user", n=hs.cuont())
