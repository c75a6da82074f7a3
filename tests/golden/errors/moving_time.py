import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, at TIMESTAMP")
tweets.where("recent", "at > TIMESTAMP 'yesterday'")
