import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="word STRING")
tweets.fold("totals", by="word", n=hs.count(), renamed_from="counts")
tweets.fold("again", by="word", n=hs.count(), renamed_from="counts")
storm.validate()
