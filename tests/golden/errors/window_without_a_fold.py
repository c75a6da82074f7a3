import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, at TIMESTAMP", event_time="at")
tweets.window("1 hour").count()
