import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, text STRING, likes INT, at TIMESTAMP")
tweets.sql("joined", "SELECT t.user FROM tweets t JOIN users u ON t.user = u.user")
