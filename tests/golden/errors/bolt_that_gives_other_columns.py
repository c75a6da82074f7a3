import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="user STRING, likes INT")


@tweets.bolt(returns="user STRING, likes INT")
def users(tweet):
    if tweet.user:
        yield {"usr": tweet.user, "likes": 1}
