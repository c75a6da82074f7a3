import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, likes INT")


@tweets.bolt(returns="user STRING")
def users(tweet):
    return f"@{tweet.user}"
