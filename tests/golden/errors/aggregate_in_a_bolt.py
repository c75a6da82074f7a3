import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, text STRING, likes INT, at TIMESTAMP")
tweets.sql("counts", "SELECT user, count(*) AS n FROM tweets GROUP BY user")
