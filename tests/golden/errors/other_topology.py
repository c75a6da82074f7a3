import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, text STRING, likes INT, at TIMESTAMP")
other = hs.Topology("other")
posts = other.spout("posts", hs.Log("data/posts"), schema="text STRING")
posts.union("both", tweets)
