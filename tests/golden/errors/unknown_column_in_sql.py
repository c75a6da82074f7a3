import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, text STRING, likes INT, at TIMESTAMP")
tweets.sql("loud", "SELECT upper(txt) AS text FROM tweets")
