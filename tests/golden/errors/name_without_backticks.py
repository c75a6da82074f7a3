import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="`user name` STRING, likes INT")
tweets.select("names", who="user name")
