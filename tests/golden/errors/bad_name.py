import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("Tweets 2024", hs.Log("data/tweets"), schema="text STRING")
