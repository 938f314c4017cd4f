"""Before an attempt begins: bring from the mirror what the folder does not have."""

from __future__ import annotations

from everstep.train.folder import FORMAT, MANIFEST, Folder, manifest_of
from everstep.train.gang import Gang
from everstep.train.lineage import Listing, Position, Wish, attempt_file, preferred
from everstep.train.mirror import Lost, Mirror
from everstep.train.shard import Damaged, Unreadable, read_shard
from everstep.train.stores import Refusal, Unavailable


class Hydration:
    """The records of all attempts, and the newest checkpoint that is whole, if it is not in the folder.

    Args:
        gang: all ranks.
        folder, mirror: this rank's.
        keeps_folder: this rank is the one that keeps this folder.
    """

    def __init__(self, gang: Gang, folder: Folder, mirror: Mirror, keeps_folder: bool) -> None:
        self._gang = gang
        self._folder = folder
        self._mirror = mirror
        self._keeps_folder = keeps_folder

    def run(self, here: Listing, attempt: int | None, wish: Wish | None) -> str:
        """Bring it.

        Args:
            here: what all folders together have.
            attempt: the number of the attempt that is to begin, None for the next free one.
            wish: the checkpoint to begin from, None for the newest.

        Returns:
            What went wrong, for a warning; "" if nothing did.

        Raises:
            Lost: nothing is in the folder, and the mirror, which may have it, cannot be read.
        """
        there = self._look(here, attempt)
        if isinstance(there, str):
            if not here.manifests:
                raise Lost(there)
            return there
        everything = Listing(
            {**there.records, **here.records}, here.manifests | there.manifests, there.marks, there.claims
        )
        problems = []
        self._adopt_records(there, here)
        for position in preferred(everything, wish, everything.next_attempt() if attempt is None else attempt):
            if position in here.manifests:
                break
            problem = self.bring(position)
            if not problem:
                break
            problems.append(f"checkpoint {position} did not come from the mirror: {problem}")
        return "; ".join(problems)

    def _look(self, here: Listing, attempt: int | None) -> Listing | str:
        """What the mirror has, the same on all ranks, or why that is not known."""
        found: Listing | str = ""
        if self._gang.rank == 0:
            try:
                there = self._mirror.listing()
                if there.manifests:
                    together = Listing(
                        {**there.records, **here.records}, here.manifests | there.manifests, {}, there.claims
                    )
                    there = self._mirror.listing(claim=together.next_attempt() if attempt is None else attempt)
                found = there
            except Lost as error:
                found = str(error)
        told: Listing | str = self._gang.tell(found)
        return told

    def _adopt_records(self, there: Listing, here: Listing) -> None:
        problem = ""
        if self._keeps_folder:
            try:
                for number, content in self._mirror.records(there, self._folder.listing().records).items():
                    self._folder.adopt(attempt_file(number), content)
            except (Unavailable, Refusal, OSError) as error:
                problem = f"{self._mirror.where}: {error}"
        problems = [text for text in self._gang.gather(problem) if text]
        if problems:
            raise Lost(problems[0])

    def bring(self, position: Position) -> str:
        """One checkpoint: each shard by its rank, then the manifest, when all shards are whole.

        A shard that is in the folder is replaced.

        Returns:
            What went wrong, the same on all ranks; "" if nothing did.
        """
        content, problem = self._bring_shard(position)
        problems = [text for text in self._gang.gather(problem) if text]
        if not problems and self._keeps_folder:
            try:
                self._folder.adopt(f"{position.folder}/{MANIFEST}", content)
            except OSError as error:
                problem = str(error)
        problems = problems or [text for text in self._gang.gather(problem) if text]
        if problems and self._keeps_folder:
            self._folder.discard(position)
        return problems[0] if problems else ""

    def _bring_shard(self, position: Position) -> tuple[bytes, str]:
        """This rank's shard; (content of the manifest, what went wrong)."""
        try:
            content = self._mirror.manifest(position)
            manifest = manifest_of(position, content)
            if manifest is None:
                return b"", f"its manifest in {self._mirror.where} is torn"
            if manifest.world_size == self._gang.world_size and manifest.format <= FORMAT:
                problem = self._mirror.fetch(position, self._gang.rank)
                if problem:
                    return b"", problem
                read_shard(self._folder, manifest, self._gang.rank)
        except Unreadable:
            # Whoever begins from it refuses with the reason.
            return content, ""
        except (Unavailable, Refusal, OSError, Damaged) as error:
            return b"", f"{self._mirror.where}: {error}"
        # Of another kind: the manifest alone is enough to be refused by name.
        return content, ""
