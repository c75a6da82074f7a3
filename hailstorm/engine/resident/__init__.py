"""Resident ticks: a Spark task that stays, and takes orders over a socket. No job is scheduled for a tick.

keeper.py     the negotiator's: has one resident worker ready, and another when that is lost or has grown
resident.py   the driver's end of one worker: starts it, gives it orders, takes its reports
worker.py     the worker's end, in a Spark task: takes orders, runs passes, answers
following.py  the worker's eye on the logs: tells the driver when there is more
wire.py       frames, and how both ends prove that they know the secret
messages.py   what is in the frames
"""
