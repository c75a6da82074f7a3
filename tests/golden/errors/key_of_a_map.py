import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="tags MAP<STRING, INT>")
tweets.fold("counts", by="tags", n=hs.count())
