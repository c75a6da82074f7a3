import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Files("data/*.csv"), schema="word STRING, at TIMESTAMP", decode="csv")
tweets.window("1 day").fold("daily", by="word", n=hs.count())
