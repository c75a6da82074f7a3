import hailstorm as hs

storm = hs.Topology("trending")
tweets = storm.spout("tweets", hs.Log("data/tweets"), schema="text STRING, at TIMESTAMP")


@tweets.bolt(returns="word STRING, at TIMESTAMP")
def words(tweet):
    for word in tweet.text.split():
        yield {"word": word, "at": tweet.at}


words.fold("counts", by="wrod", n=hs.count())
