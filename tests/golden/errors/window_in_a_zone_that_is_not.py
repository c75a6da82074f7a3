import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="word STRING, at TIMESTAMP", event_time="at")
tweets.window("1 day", zone="Europe/Berlim").fold("daily", by="word", n=hs.count())
