import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, likes INT")
tweets.fold("means", by="user", likes=hs.avg("likes"))
