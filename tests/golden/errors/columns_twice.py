import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, likes INT")
tweets.select("both", columns={"user": "user"}, user="upper(user)")
