import hailstorm as hs

storm = hs.Topology("shop")
orders = storm.spout("orders", hs.Log("data/orders"), schema="id INT, item STRING, price INT, at TIMESTAMP")
views = storm.spout("views", hs.Log("data/views"), schema="item STRING, user STRING, at TIMESTAMP")
prices = storm.table("prices", hs.Log("data/prices"), schema="item STRING, price INT", key="item")
again = orders.select("again", item="item", price="price", price_right="price")
orders.join("twice", again, on="item", within="1 hour")
