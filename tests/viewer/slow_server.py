"""`anofpdm` with a worker that waits at every call of the network: interruptible on any machine, at little cost."""

import time

SECONDS = 0.15


def slow_down() -> None:
    from anofpdm.network.predictor import NoisePredictor

    predict = NoisePredictor.__call__

    def wait_and_predict(self, x, t, labels):
        time.sleep(SECONDS)
        return predict(self, x, t, labels)

    NoisePredictor.__call__ = wait_and_predict  # type: ignore[method-assign]


if __name__ == "__mp_main__":  # a worker: multiprocessing imports this file in it
    slow_down()

if __name__ == "__main__":
    from anofpdm.cli.main import main

    main()
