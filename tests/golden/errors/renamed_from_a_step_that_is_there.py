import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="word STRING")
tweets.fold("counts", by="word", n=hs.count())
tweets.fold("totals", by="word", n=hs.count(), renamed_from="counts")
storm.validate()
